package daprmetrics

import (
	"cmp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// daprMethods is the prefix of the full method names of Dapr's gRPC API.
const daprMethods = "/dapr.proto.runtime.v1.Dapr/"

// Failed counts an error of the API by its code, such as ERR_STATE_SAVE. It does nothing unless Options.ErrorCodes is
// set.
func (a *App) Failed(code string) {
	if a.metrics.options().ErrorCodes {
		a.metrics.inc(errorCodes, a.id, a.metrics.codes.label(code), category(code))
	}
}

// failedCall counts a failed call of Dapr's gRPC API by its error code. The code is the metadata item errorCode of the
// ErrorInfo or, if there is none, the reason. Only codes that begin with ERR_ or DAPR_ are counted.
func (a *App) failedCall(method string, err error) {
	if !a.metrics.options().ErrorCodes || !strings.HasPrefix(method, daprMethods) {
		return
	}
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		code := cmp.Or(info.GetMetadata()["errorCode"], info.GetReason())
		if strings.HasPrefix(code, "ERR_") || strings.HasPrefix(code, "DAPR_") {
			a.Failed(code)
		}
		return
	}
}

// category returns Dapr's name of the building block that an error code belongs to, or "common".
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
