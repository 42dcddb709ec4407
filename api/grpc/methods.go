package grpc

import (
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/api/protos"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quorate/quorate/api/runtimepb"
)

// daprMethods implements Dapr's service. It embeds one type for each building block. Each of these types holds the
// services that its methods call. A new building block needs a line here and in newDaprMethods.
type daprMethods struct {
	stateMethods
	actorMethods
	secretMethods
	lockMethods
	jobMethods
	configurationMethods
	bindingMethods
	pubsubMethods
	workflowMethods
	invokeMethods
	runtimeMethods
	unimplemented
}

// unimplemented refuses all calls of Dapr's service. In daprMethods, the methods of the building blocks take precedence
// over those of unimplemented, because UnimplementedDaprServer is embedded one level deeper.
type unimplemented struct {
	runtimev1.UnimplementedDaprServer
}

func newDaprMethods(c Config, core *core) *daprMethods {
	return &daprMethods{
		stateMethods:         stateMethods{core, c.State},
		actorMethods:         actorMethods{core, c.State, c.Actors, c.Metadata},
		secretMethods:        secretMethods{c.Secrets},
		lockMethods:          lockMethods{c.Locks},
		jobMethods:           jobMethods{core, c.Jobs},
		configurationMethods: configurationMethods{core, c.Configurations},
		bindingMethods:       bindingMethods{c.Bindings},
		pubsubMethods:        pubsubMethods{core, c.Topics, c.Subscriber},
		workflowMethods:      workflowMethods{c.Workflows},
		invokeMethods:        invokeMethods{core, c.Invoke, c.Tokens.Required()},
		runtimeMethods:       runtimeMethods{c.App, c.Metadata, c.Shutdown},
	}
}

// register registers Dapr's service, the services that only Quorate has, the service of workflow SDKs, and the health
// service.
func (s *Server) register(c Config, dapr *daprMethods) {
	s.server.RegisterService(s.guarded(&runtimev1.Dapr_ServiceDesc), dapr)
	s.server.RegisterService(s.guarded(&runtimepb.State_ServiceDesc), &watchServer{core: s.core, state: c.State})
	s.server.RegisterService(s.guarded(&runtimepb.Configuration_ServiceDesc),
		&configurationServer{configurations: c.Configurations})
	s.server.RegisterService(s.guarded(&protos.TaskHubSidecarService_ServiceDesc),
		&hubServer{core: s.core, workflows: c.Workflows})
	s.server.RegisterService(s.guarded(&healthv1.Health_ServiceDesc), &healthServer{core: s.core, health: c.Health})
}
