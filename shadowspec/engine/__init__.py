"""The measuring engine: paired propose-and-verify runs on one device.  Torch lives here and in kernels."""

from shadowspec.engine.candidate import Candidate, Models, engine_name
from shadowspec.engine.measure import Engine
from shadowspec.engine.models import LoadedModel, ModelTokenizer

__all__ = ["Candidate", "Engine", "LoadedModel", "ModelTokenizer", "Models", "engine_name"]
