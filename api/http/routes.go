package http

import "github.com/quorate/quorate/api/http/watches"

// block is a part of the API that has a type of its own, such as the routes of jobs. It holds the services that its
// own handlers call, and no others.
type block interface {
	routes() []route
}

// blocks returns all parts of the API. A new building block adds its line here.
func (f *Face) blocks(c Config) []block {
	return []block{
		&stateRoutes{f.core, c.State, watches.NewSender(&f.metrics.inFlight)},
		&actorRoutes{f.core, c.State, c.Actors},
		&secretRoutes{f.core, c.Secrets},
		&lockRoutes{f.core, c.Locks},
		&jobRoutes{f.core, c.Jobs},
		&configurationRoutes{f.core, c.Configurations},
		&bindingRoutes{f.core, c.Bindings},
		&pubsubRoutes{f.core, c.Topics},
		&workflowRoutes{f.core, c.Workflows},
		&invokeRoutes{service: c.Invoke, surface: c.Surface},
		&runtimeRoutes{f.core, c.App, c.Metadata, c.Shutdown},
		&healthRoutes{f.core, c.Health},
	}
}

// anyVerb stands for every verb.
const anyVerb = "*"

// route is one endpoint. A "*" at the end of path stands for a key: the rest of the request's path, including
// slashes, decoded once.
type route struct {
	verbs  string // separated by spaces; GET answers HEAD too, except if noHead is set
	path   string
	serve  handler
	noHead bool
	open   bool // needs no token, and is served while the node starts
	early  bool // is served while the node starts
	often  bool // is found without the mux, by Face.direct: one route for GET, and one for POST
	exact  bool // has no form with a slash at the end: that is the way to an empty key
}
