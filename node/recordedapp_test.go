package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api/http/transcript"
	"github.com/quorate/quorate/node"
)

// recordedApp is the application of the transcripts of SDKs, over HTTP or gRPC. It answers as a transcript says, and
// keeps what it receives. A step of a transcript controls it:
//
//	PUT /answers/POST/job/a   sets the answer to POST /job/a: headers, body, and the header Status, which is 200 if
//	                          it is not given, or a gRPC code
//	GET /requests             waits for the next request, and returns it
//
// If a transcript has set no answer, the application answers 404 or Unimplemented. GET /dapr/config waits until its
// answer is set.
type recordedApp struct {
	mu         sync.Mutex
	answers    map[string]transcript.Request
	configured chan struct{} // closed when there is an answer to GET /dapr/config
	requests   chan string
}

func newRecordedApp(t *testing.T) *recordedApp {
	t.Helper()
	return &recordedApp{answers: map[string]transcript.Request{}, configured: make(chan struct{}),
		requests: make(chan string, 100)}
}

// listen serves the protocol and returns the port.
func (a *recordedApp) listen(t *testing.T, protocol node.Protocol) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var stop func()
	if protocol == node.ProtocolGRPC {
		s := grpc.NewServer(grpc.UnknownServiceHandler(a.serveGRPC))
		stop = s.Stop
		go func() {
			defer close(done)
			_ = s.Serve(l)
		}()
	} else {
		s := &http.Server{Handler: http.HandlerFunc(a.serveHTTP), ReadHeaderTimeout: time.Minute}
		stop = func() { _ = s.Close() }
		go func() {
			defer close(done)
			_ = s.Serve(l)
		}()
	}
	t.Cleanup(func() {
		stop()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// control executes a step of a transcript.
func (a *recordedApp) control(ctx context.Context, r transcript.Request) (transcript.Response, error) {
	if to, ok := strings.CutPrefix(r.Target, "/answers/"); ok && r.Method == http.MethodPut {
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, known := a.answers[to]; !known && to == "GET/dapr/config" {
			close(a.configured)
		}
		a.answers[to] = r
		return transcript.Response{Status: http.StatusNoContent, Header: http.Header{}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	select {
	case text := <-a.requests:
		return transcript.Response{Status: http.StatusOK, Header: http.Header{}, Body: []byte(text)}, nil
	case <-ctx.Done():
		return transcript.Response{}, fmt.Errorf("the application received no further request")
	}
}

// answer returns the answer to a request. The status is empty if the transcript has set no answer.
func (a *recordedApp) answer(to string) (status string, out transcript.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out, found := a.answers[to]
	if !found {
		return "", out
	}
	status = "200"
	for _, h := range out.Header {
		if h.Name == "Status" {
			status = h.Value
		}
	}
	return status, out
}

func (a *recordedApp) serveHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path, _ := url.PathUnescape(r.URL.EscapedPath())
	if path == "/dapr/config" {
		select {
		case <-a.configured:
		case <-r.Context().Done():
			return
		}
	}
	status, out := a.answer(r.Method + path)
	if r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodDelete {
		text := r.Method + " " + r.RequestURI
		for _, name := range []string{"Content-Type", "Dapr-Caller-App-Id", "Dapr-Reentrancy-Id", "X-Daprrequestheader",
			"Quorate-Job-Attempt", "X-Tenant"} {
			if v := r.Header.Get(name); v != "" {
				if name == "Dapr-Reentrancy-Id" && !strings.HasPrefix(v, "chain") {
					v = "<made by the node>"
				}
				text += "\n" + name + ": " + v
			}
		}
		if len(body) > 0 {
			text += "\n\n" + string(body)
		}
		a.requests <- text
	}
	for _, h := range out.Header {
		if h.Name != "Status" && h.Name != "Host" {
			w.Header().Set(h.Name, h.Value)
		}
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header()["Content-Type"] = nil // so that net/http does not guess a type
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		code = http.StatusNotFound
	}
	w.WriteHeader(code)
	_, _ = w.Write(out.Body)
}

func (a *recordedApp) serveGRPC(_ any, stream grpc.ServerStream) error {
	target, _ := grpc.Method(stream.Context())
	status, _ := a.answer(strings.TrimPrefix(target, "/"))
	method, err := methodOf(target)
	if err != nil {
		return rpcstatus.Error(codes.Unimplemented, target)
	}
	in := message(method.Input())
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	if strings.Contains(target, "/OnJobEvent") {
		text := "POST " + target
		if attempt := metadata.ValueFromIncomingContext(stream.Context(), "quorate-job-attempt"); len(attempt) > 0 {
			text += "\nQuorate-Job-Attempt: " + attempt[0]
		}
		a.requests <- text + "\n\n" + string(protoText(in))
	}
	switch status {
	case "200", "OK":
		return stream.SendMsg(&emptypb.Empty{}) // the same bytes as any answer without fields
	case "":
		return rpcstatus.Error(codes.Unimplemented, target)
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == status {
			return rpcstatus.Error(code, "as the transcript says")
		}
	}
	return rpcstatus.Error(codes.Internal, "the transcript has the unknown code "+status)
}
