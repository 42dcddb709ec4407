package grpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
)

// The server closes while calls wait. Clients repeat a call with code Unavailable, so a call whose change may be stored
// must not get this code.
func TestHubServer_ClosingKeepsStoredChangesIndeterminate(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	end()
	s := &hubServer{core: &core{life: life}}
	stored := &api.Error{Kind: api.Indeterminate, Message: "the request is stored"}
	if code := status.Code(s.ended(t.Context(), stored)); code == codes.Unavailable {
		t.Errorf("a stored change: %v", code)
	}
	if code := status.Code(s.ended(t.Context(), context.Canceled)); code != codes.Unavailable {
		t.Errorf("a wait: %v", code)
	}
}
