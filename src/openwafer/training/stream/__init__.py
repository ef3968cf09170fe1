"""Weight streaming: split a model into layers, plan a step, walk it on a device."""
