"""The Fn API's services in the process that runs a task, and the SDK workers that are connected to it."""
