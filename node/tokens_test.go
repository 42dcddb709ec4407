package node_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"

	"github.com/quorate/quorate/node"
)

func TestAPITokens_RotateWithoutRestart(t *testing.T) {
	c := config(t)
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("# tokens\nold-token\n")
	c.Security.APITokenFile, c.Security.FileTokens, c.Security.APITokens = file, 1,
		[]node.Secret{"fixed-token", "old-token"}
	c.Security.Look = 20 * time.Millisecond
	n, log, err := openPlanted(t, c)
	if err != nil {
		t.Fatal(err)
	}
	web := client(t, "")
	conn, err := grpc.NewClient("passthrough:///"+n.Addresses().GRPC[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a test
	overGRPC := func(token string) bool {
		t.Helper()
		_, err := runtimev1.NewDaprClient(conn).GetMetadata(metadata.AppendToOutgoingContext(t.Context(),
			"dapr-api-token", token), &runtimev1.GetMetadataRequest{})
		if code := rpcstatus.Code(err); code != codes.OK && code != codes.Unauthenticated {
			t.Fatal(err)
		}
		return err == nil
	}
	overHTTP := func(token string) bool {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Addresses().API[0]+
			"/v1.0/metadata", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("dapr-api-token", token)
		response, err := web.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // not read
		return response.StatusCode == http.StatusOK
	}
	accepted := func(token string) bool { return overHTTP(token) && overGRPC(token) }
	refused := func(token string) bool { return !overHTTP(token) && !overGRPC(token) }
	eventually := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !holds(); <-time.After(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not come true\n%s", what, log)
			}
		}
	}
	write("old-token\nnew-token\n")
	eventually("both tokens", func() bool { return accepted("new-token") })
	if !accepted("old-token") || !accepted("fixed-token") {
		t.Error("a token that was not taken away is refused")
	}
	write("new-token\n")
	eventually("the end of the old token", func() bool { return refused("old-token") })
	write("\n# nothing\n")
	eventually("a complaint about the empty file", func() bool {
		return strings.Contains(log.String(), "holds no token")
	})
	if !accepted("new-token") || !accepted("fixed-token") || !refused("") || !refused("old-token") {
		t.Error("an empty file must change nothing")
	}
	if strings.Contains(log.String(), "-token\"") || strings.Contains(log.String(), "new-token") {
		t.Errorf("the log shows tokens: %s", log)
	}
}
