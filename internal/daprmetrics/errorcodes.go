package daprmetrics

import (
	"strings"

	"google.golang.org/grpc/status"
)

// daprMethods is the start of the methods of Dapr's gRPC API.
const daprMethods = "/dapr.proto.runtime.v1.Dapr/"

// Failed records an error of the API by its code, such as ERR_STATE_SAVE, if the option ErrorCodes is set.
func (a *App) Failed(code string) {
	if a.metrics.options.ErrorCodes {
		a.metrics.inc(errorCodes, a.id, a.metrics.codes.label(code), category(code))
	}
}

// failedCall records the error of a call of the gRPC API. Its text begins with the code.
func (a *App) failedCall(method string, err error) {
	code, _, found := strings.Cut(status.Convert(err).Message(), ": ")
	if found && strings.HasPrefix(method, daprMethods) &&
		(strings.HasPrefix(code, "ERR_") || strings.HasPrefix(code, "DAPR_")) {
		a.Failed(code)
	}
}

// category returns Dapr's name of the building block that has an error code.
func category(code string) string {
	for _, c := range []struct{ part, name string }{
		{"ERR_ACTOR_", "actor"},
		{"ERR_NOT_SUPPORTED_STATE_", "state"},
		{"ERR_STATE_", "state"},
		{"ERR_CONFIGURATION_", "configuration"},
		{"ERR_SECRET_", "secret"},
		{"ERR_PERMISSION_DENIED", "secret"},
		{"ERR_DIRECT_INVOKE", "service-invocation"},
		{"ERR_INVOKE_OUTPUT_BINDING", "binding"},
		{"ERR_LOCK_", "lock"},
		{"ERR_TRY_LOCK", "lock"},
		{"ERR_UNLOCK", "lock"},
		{"DAPR_SCHEDULER_", "job"},
		{"ERR_HEALTH_", "health"},
		{"ERR_OUTBOUND_HEALTH_", "health"},
	} {
		if strings.HasPrefix(code, c.part) {
			return c.name
		}
	}
	return "common"
}
