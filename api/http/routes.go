package http

import "github.com/quorate/quorate/api/http/watches"

// block is a part of the API, such as jobs. Each block has a type of its own, which holds only the services that its
// handlers call.
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
	often  bool // Face.direct finds it without the mux; allowed for one GET and one POST route
	exact  bool // is not served with a trailing slash, because that is the path of an empty key
}
