package node_test

import (
	"net/http"
	"strings"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/quorate/quorate/node/nodetest"
)

// Writes carry the lock token in a header, in the metadata of an item, and over gRPC. Each is tried with the newest
// token and with an old one.
func TestLocks_WritesWithTokenOfFormerOwnerAreRefused(t *testing.T) {
	n := nodetest.Open(t, nodetest.Config(t))
	nodetest.Ready(t, n)
	acquire := func(owner string) string {
		t.Helper()
		code, body, header := nodetest.Ask(t, n, "POST", "/v1.0/lock/lockstore",
			`{"resourceId":"a b","lockOwner":"`+owner+`","expiryInSeconds":600}`)
		if code != http.StatusOK || body != `{"success":true}` {
			t.Fatalf("lock: %d %s", code, body)
		}
		return header.Get("Quorate-Lock-Revision")
	}
	old := acquire("x")
	if code, body, _ := nodetest.Ask(t, n, "POST", "/v1.0-alpha1/unlock/lockstore",
		`{"resourceId":"a b","lockOwner":"x"}`); code != http.StatusOK || body != `{"status":0}` {
		t.Fatalf("unlock: %d %s", code, body)
	}
	now := acquire("y")

	conn, err := grpc.NewClient("passthrough:///"+n.Addresses().GRPC[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimev1.NewDaprClient(conn)
	for name, write := range map[string]func(token string) (refused bool){
		"item": func(token string) bool {
			code, body, _ := nodetest.Ask(t, n, "POST", "/v1.0/state/statestore",
				`[{"key":"k","value":1,"metadata":{"quorateLock":"lockstore/a%20b@`+token+`"}}]`)
			return refusal(t, code, http.StatusPreconditionFailed, body)
		},
		"delete": func(token string) bool {
			code, body, _ := nodetest.Ask(t, n, "DELETE",
				"/v1.0/state/statestore/k?metadata.quorateLock=lockstore/a%2520b@"+token, "")
			return refusal(t, code, http.StatusPreconditionFailed, body)
		},
		"transaction": func(token string) bool {
			code, body, _ := nodetest.Ask(t, n, "POST", "/v1.0/state/statestore/transaction",
				`{"operations":[{"operation":"upsert","request":{"key":"k","value":1}}],
				  "metadata":{"quorateLock":"lockstore/a%20b@`+token+`"}}`)
			return refusal(t, code, http.StatusInternalServerError, body)
		},
		"grpc": func(token string) bool {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "quorate-lock", "lockstore/a%20b@"+token)
			_, err := client.SaveState(ctx, &runtimev1.SaveStateRequest{StoreName: "statestore"})
			if err != nil {
				t.Errorf("a write of nothing: %v", err)
			}
			_, err = client.DeleteState(ctx, &runtimev1.DeleteStateRequest{StoreName: "statestore", Key: "k"})
			if err != nil && grpcstatus.Code(err) != codes.FailedPrecondition {
				t.Errorf("%v", err)
			}
			return err != nil
		},
	} {
		if write(now) {
			t.Errorf("%s: the owner's write was refused", name)
		}
		if !write(old) {
			t.Errorf("%s: a write of the former owner was applied", name)
		}
	}
	var header metadata.MD
	got, err := client.TryLockAlpha1(t.Context(), &runtimev1.TryLockRequest{StoreName: "lockstore", ResourceId: "g",
		LockOwner: "x", ExpiryInSeconds: 60}, grpc.Header(&header))
	if err != nil || !got.GetSuccess() || len(header.Get("quorate-lock-revision")) != 1 {
		t.Errorf("TryLockAlpha1: %v, %v, %v", got, err, header)
	}
	free, err := client.UnlockAlpha1(t.Context(), &runtimev1.UnlockRequest{StoreName: "lockstore", ResourceId: "g",
		LockOwner: "y"})
	if err != nil || free.GetStatus() != runtimev1.UnlockResponse_LOCK_BELONGS_TO_OTHERS {
		t.Errorf("UnlockAlpha1: %v, %v", free, err)
	}
	_, err = client.TryLockAlpha1(t.Context(), &runtimev1.TryLockRequest{StoreName: "nope", ResourceId: "g",
		LockOwner: "x", ExpiryInSeconds: 60})
	if grpcstatus.Code(err) != codes.InvalidArgument {
		t.Errorf("TryLockAlpha1 at an unknown store: %v", err)
	}
}

// refusal reports whether an answer refuses a write because of its token.
func refusal(t *testing.T, code, want int, body string) bool {
	t.Helper()
	if code == http.StatusNoContent {
		return false
	}
	if code != want || !strings.Contains(body, `"reason":"lock_lost"`) {
		t.Errorf("%d %s", code, body)
	}
	return true
}
