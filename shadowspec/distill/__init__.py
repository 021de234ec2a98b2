"""Making a draft better at its endpoints' own traffic: its target's distribution over logged responses, learnt."""
