package grpc

import (
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quorate/quorate/api/runtimepb"
)

// daprMethods has the methods of Dapr's service. Each building block has its methods on a type of its own, with the
// services that they call. A new building block adds a line here and in newDaprMethods.
type daprMethods struct {
	stateMethods
	actorMethods
	secretMethods
	lockMethods
	jobMethods
	configurationMethods
	bindingMethods
	pubsubMethods
	invokeMethods
	runtimeMethods
	unimplemented
}

// unimplemented refuses the methods that no block has. Go prefers the methods of the blocks, because they are embedded
// one level less deeply.
type unimplemented struct {
	runtimev1.UnimplementedDaprServer
}

func newDaprMethods(c Config, core *core) *daprMethods {
	return &daprMethods{
		stateMethods:         stateMethods{core, c.State},
		actorMethods:         actorMethods{core, c.State, c.Actors, c.Metadata},
		secretMethods:        secretMethods{c.Secrets},
		lockMethods:          lockMethods{c.Locks},
		jobMethods:           jobMethods{c.Jobs},
		configurationMethods: configurationMethods{core, c.Configurations},
		bindingMethods:       bindingMethods{c.Bindings},
		pubsubMethods:        pubsubMethods{core, c.Topics, c.Subscriber},
		invokeMethods:        invokeMethods{core, c.Invoke, c.Tokens.Required()},
		runtimeMethods:       runtimeMethods{c.App, c.Metadata, c.Shutdown},
	}
}

// register registers Dapr's service, the services that only Quorate has, and the health service.
func (s *Server) register(c Config, dapr *daprMethods) {
	s.server.RegisterService(s.guarded(&runtimev1.Dapr_ServiceDesc), dapr)
	s.server.RegisterService(s.guarded(&runtimepb.State_ServiceDesc), &watchServer{core: s.core, state: c.State})
	s.server.RegisterService(s.guarded(&runtimepb.Configuration_ServiceDesc),
		&configurationServer{configurations: c.Configurations})
	s.server.RegisterService(s.guarded(&healthv1.Health_ServiceDesc), &healthServer{core: s.core, health: c.Health})
}
