package invoke_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/discovery"
)

// reading is an application whose first node cannot be reached, but still reads the body of the request.
type reading struct {
	*cluster
	bodies chan string // received by the second node
}

func (r *reading) Carry(at *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	if at.Node == "n1" {
		go func() { _, _ = io.Copy(io.Discard, in.Request.Body) }()
		synctest.Wait() // until the first node reads
	} else {
		b, _ := io.ReadAll(in.Request.Body)
		r.bodies <- string(b)
	}
	return r.cluster.Carry(at, in)
}

func TestInvoke_RetryDoesNotWaitForTheCaller(t *testing.T) {
	for name, c := range map[string]struct {
		length int64
		pause  time.Duration // of the caller in the middle of the body
		again  bool
	}{
		"short pause":              {4, 10 * time.Millisecond, true},
		"long pause":               {4, time.Hour, false},
		"stream with a long pause": {-1, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service, routes := caller(t)
				r := &reading{&cluster{nodes: []string{"n1", "n2"}, down: []string{"n1"}}, make(chan string, 1)}
				routes.Open(r, r)
				body, to := io.Pipe()
				ended := make(chan struct{})
				go func() {
					_, _ = io.WriteString(to, "te")
					select {
					case <-time.After(c.pause):
					case <-ended:
					}
					_, _ = io.WriteString(to, "xt")
					_ = to.Close()
				}()
				begun := time.Now()
				_, err := service.Do(t.Context(), &invoke.Call{Target: "web", Verb: http.MethodPost, Path: "/x",
					Header: http.Header{}, Body: body, Length: c.length})
				if waited := time.Since(begun); waited > time.Second {
					t.Errorf("the call took %s", waited)
				}
				switch {
				case c.again && (err != nil || <-r.bodies != "text"):
					t.Error(err)
				case !c.again && (err == nil || api.AsError(err).Kind != api.Unavailable):
					t.Error(err)
				}
				_ = body.Close()
				close(ended)
			})
		})
	}
}
