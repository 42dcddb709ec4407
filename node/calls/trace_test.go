package calls_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/internal/tracing"
	"github.com/quorate/quorate/node/calls"
)

func TestTracer_SpanOfRefusedCallHasTheError(t *testing.T) {
	collector, spans := testutil.Bodies(t)
	code := func(n string) http.Header { return http.Header{"Grpc-Status": {n}} }
	for name, c := range map[string]struct {
		answer *http.Response
		want   string // the tag error
	}{
		"handled":           {&http.Response{StatusCode: 200}, ""},
		"refused":           {&http.Response{StatusCode: 500}, "Code(500): Internal Server Error"},
		"gRPC, handled":     {&http.Response{StatusCode: 200, Trailer: code("0")}, ""},
		"gRPC, refused":     {&http.Response{StatusCode: 200, Trailer: code("5")}, "gRPC NotFound"},
		"gRPC, no messages": {&http.Response{StatusCode: 200, Header: code("9")}, "gRPC FailedPrecondition"},
		"callback":          {&http.Response{StatusCode: 500, Header: code("13")}, "gRPC Internal"},
		"no code":           {&http.Response{StatusCode: 200, Header: code("x")}, ""},
	} {
		tracer, err := tracing.Open(t.Context(), tracing.Options{
			Env:      func(string) (string, bool) { return "", false },
			Declared: &tracing.Declared{SamplingRate: 1, Zipkin: collector}})
		if err != nil {
			t.Fatal(err)
		}
		span := calls.Tracer{Tracer: tracer}.Start(t.Context(), http.Header{}, invoke.SpanCaller, "invoke web")
		span.End(c.answer, nil)
		if err := tracer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []struct{ Tags map[string]string }
		text := <-spans
		if json.Unmarshal([]byte(text), &got) != nil || len(got) != 1 || got[0].Tags["error"] != c.want {
			t.Errorf("%s: the span is %s, want the error %q", name, text, c.want)
		}
	}
}
