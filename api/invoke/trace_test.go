package invoke_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
)

// recorder is a tracer that records how its spans end.
type recorder struct{ ends []string }

func (r *recorder) Start(ctx context.Context, _ http.Header, _ invoke.SpanSide, _ string) invoke.Span {
	return recorded{r, ctx}
}

type recorded struct {
	*recorder
	ctx context.Context
}

func (s recorded) Context() context.Context { return s.ctx }
func (recorded) TraceID() string            { return "" }
func (recorded) Inject(http.Header)         {}

func (s recorded) End(answer *http.Response, err error) {
	switch {
	case err != nil:
		s.ends = append(s.ends, "failed")
	default:
		s.ends = append(s.ends, "code "+answer.Header.Get("Grpc-Status")+answer.Trailer.Get("Grpc-Status"))
	}
}

// trailing is a body that sets the trailer of its answer when it ends. If code is empty, it fails instead.
type trailing struct {
	io.Reader
	answer *http.Response
	code   string // gRPC status; empty = the body fails
}

func (b trailing) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) && b.code == "" {
		return n, io.ErrUnexpectedEOF
	} else if errors.Is(err, io.EOF) {
		b.answer.Trailer = http.Header{"Grpc-Status": {b.code}}
	}
	return n, err
}

func (trailing) Close() error { return nil }

// instances is an application with one instance, on another node.
type instances struct {
	cluster
	answer *http.Response
}

func (i *instances) Carry(*discovery.Instance, *invoke.Inbound) (invoke.Answer, error) {
	return invoke.Answer{Response: i.answer}, nil
}

// The status of a gRPC answer follows the messages, or is in the header if there are no messages.
func TestInvoke_SpanOfGRPCAnswerHasItsStatus(t *testing.T) {
	for name, c := range map[string]struct {
		header, trailer string
		read            bool
		want            string
	}{
		"handled":      {"", "0", true, "code 0"},
		"refused":      {"", "5", true, "code 5"},
		"no messages":  {"5", "0", false, "code 5"},
		"cut short":    {"", "", true, "failed"},
		"not read":     {"", "0", false, "failed"},
		"no gRPC call": {"", "x", false, "code "},
	} {
		t.Run(name, func(t *testing.T) {
			answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
			answer.Body = trailing{strings.NewReader("messages"), answer, c.trailer}
			if c.trailer != "x" {
				answer.Header.Set("Content-Type", "application/grpc+proto")
			}
			if c.header != "" {
				answer.Header.Set("Grpc-Status", c.header)
			}
			i := &instances{cluster{nodes: []string{"n1"}}, answer}
			metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
			if err != nil {
				t.Fatal(err)
			}
			tracer, sessions, routes := &recorder{}, api.NewSessions(nil), &invoke.Routes{}
			routes.Open(i, i)
			service := invoke.New(api.App{ID: "shop"}, invoke.Parts{Routes: routes,
				Here: invoke.NewCallee(sessions, metrics, tracer), Sessions: sessions, Tracer: tracer,
				Policies: resiliency.NewPolicies(), Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
			got, err := service.Do(t.Context(), &invoke.Call{Target: "web", Verb: http.MethodPost, Path: "/x",
				Header: http.Header{}, Body: http.NoBody})
			if err != nil {
				t.Fatal(err)
			}
			if c.read {
				if len(tracer.ends) > 0 {
					t.Errorf("the span has ended before the answer: %q", tracer.ends)
				}
				_, _ = io.ReadAll(got.Body)
			}
			_ = got.Body.Close()
			if len(tracer.ends) != 1 || tracer.ends[0] != c.want {
				t.Errorf("the span ends with %q, want %q", tracer.ends, c.want)
			}
		})
	}
}
