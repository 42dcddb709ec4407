package headers_test

import (
	"testing"

	"github.com/quorate/quorate/internal/headers"
)

func TestFoldsToOurs(t *testing.T) {
	for name, want := range map[string]bool{
		"Dapr_caller_app_id": true, "Dapr-Caller_app-Id": true, "DAPR_CALLER_APP_ID": true,
		"Dapr.Caller.App.Id": true, "Dapr-Caller-App~Id": true, "Dapr_caller_namespace": true,
		"Dapr_callee_app_id": true, "Dapr_app_id": true, "Dapr_api_token": true, "Destination_app_id": true,
		"Quorate_session": true, "Quorate.Target": true,
		"Transfer_encoding": true, "Content_length": true, "Proxy_authorization": true, "X_forwarded_for": true,
		"X_forwarded_host":   true,
		"Dapr-Caller-App-Id": false, "X-Forwarded-For": false, "X_key": false, "Metadata.ttlexpiretime": false,
		"Dapr_key": false, "": false,
	} {
		if got := headers.FoldsToOurs(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
