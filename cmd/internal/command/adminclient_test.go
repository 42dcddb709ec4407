package command_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// TestAdminClient_LostAnswer checks that a change whose answer was lost is not reported as one that was not made.
func TestAdminClient_LostAnswer(t *testing.T) {
	dir, err := os.MkdirTemp("", "q") // paths of t.TempDir are too long for a socket
	testutil.Must(t, err)
	defer os.RemoveAll(dir)
	a := command.AdminClient{DataDir: dir}
	var v any
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	stream := func(ctx context.Context, method string) error {
		return a.Stream(ctx, method, "/x", nil, func(*http.Response) error { return errors.New("an answer") })
	}
	for what, err := range map[string]error{
		"get":           a.Get(t.Context(), "/x", &v),
		"post":          a.Post(t.Context(), "/x", 1, &v),
		"streamed post": stream(t.Context(), http.MethodPost),
	} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s without a node: %v", what, err)
		}
	}

	l, err := net.Listen("unix", filepath.Join(dir, "admin.sock"))
	testutil.Must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // closes the connection
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	for what, c := range map[string]struct {
		err  error
		want fault.Code
	}{
		"get":           {a.Get(t.Context(), "/x", &v), fault.Unavailable},
		"streamed get":  {stream(t.Context(), http.MethodGet), fault.Unavailable},
		"post":          {a.Post(t.Context(), "/x", 1, &v), fault.Indeterminate},
		"streamed post": {stream(t.Context(), http.MethodPost), fault.Indeterminate},

		"post that was not sent":          {a.Post(canceled, "/x", 1, &v), fault.Unavailable},
		"streamed post that was not sent": {stream(canceled, http.MethodPost), fault.Unavailable},
	} {
		if !fault.Is(c.err, c.want) {
			t.Errorf("%s: %v, want the code %s", what, c.err, c.want)
		}
	}
}
