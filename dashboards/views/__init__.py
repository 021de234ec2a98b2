"""One page each, with one public function `page()`."""
