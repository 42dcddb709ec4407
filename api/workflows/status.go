package workflows

import (
	"strings"

	"github.com/dapr/durabletask-go/api/protos"
)

// StatusText returns the status of an instance in the words of Dapr's API.
func StatusText(s protos.OrchestrationStatus) string {
	if s == protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED {
		return "UNKNOWN" // as in Dapr
	}
	return strings.TrimPrefix(s.String(), "ORCHESTRATION_STATUS_")
}

// Properties returns the properties of an instance that Dapr's API shows in addition to the status, such as the input,
// the output and the details of a failure. Properties that are not set are absent.
func Properties(s *protos.WorkflowState) map[string]string {
	const prefix = "dapr.workflow."
	out := map[string]string{}
	if v := s.GetCustomStatus(); v.GetValue() != "" {
		out[prefix+"custom_status"] = v.GetValue()
	}
	if v := s.GetInput(); v.GetValue() != "" {
		out[prefix+"input"] = v.GetValue()
	}
	failure := s.GetFailureDetails()
	if failure == nil {
		if v := s.GetOutput(); v.GetValue() != "" {
			out[prefix+"output"] = v.GetValue()
		}
		return out
	}
	out[prefix+"failure.error_type"] = failure.GetErrorType()
	out[prefix+"failure.error_message"] = failure.GetErrorMessage()
	if v := failure.GetStackTrace(); v.GetValue() != "" {
		out[prefix+"failure.stack_trace"] = v.GetValue()
	}
	return out
}
