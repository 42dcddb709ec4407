package actors_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

func TestAnswer_ShorterThanAnnounced(t *testing.T) {
	for method, want := range map[string]struct{ body, reason string }{
		"short":  {body: "ok"},              // shorter than its Content-Length
		"broken": {reason: "indeterminate"}, // a chunked body without its end
	} {
		t.Run(method, func(t *testing.T) {
			inWorld(t, plain, func(t *testing.T, w *world) {
				answer, err := w.runtime.Do(t.Context(), &actors.Call{Actor: api.Actor{Type: "T", ID: "1"},
					Method: method, Verb: "POST"})
				if string(answer.Body) != want.body || reason(err) != want.reason {
					t.Errorf("%q, %v", answer.Body, err)
				}
			})
		})
	}
}

// answering is a stream of an application that hosts the actors of type T.
type answering struct {
	actors.App
	answer actors.Answer
}

func (*answering) Healthy() (bool, string) { return true, "" }

func (*answering) Config(context.Context) (actors.Config, bool, error) {
	c, err := actors.ParseConfig([]byte(plain))
	return c, true, err
}

func (a *answering) Take(context.Context, *actors.Turn) (actors.Answer, error) { return a.answer, nil }

func (*answering) Deactivate(context.Context, api.Actor) error { return nil }

// Answers over a stream and answers of another node are checked like answers over HTTP.
func TestAnswer_OfStreamAndOfAnotherNodeIsChecked(t *testing.T) {
	many := http.Header{}
	for i := range 1001 {
		many[fmt.Sprint("X-", i)] = []string{""}
	}
	for name, c := range map[string]struct {
		answer actors.Answer
		kept   string // headers
		reason string
	}{
		"headers of the connection": {actors.Answer{Status: 200, Header: http.Header{
			"Connection": {"X-Hop", "close, X-Two"}, "X-Hop": {"1"}, "X-Two": {"2"}, "Content-Length": {"1"},
			"Transfer-Encoding": {"gzip"}, "Trailer": {"X"}, "Upgrade": {"x"}, "Quorate-Session": {"s"},
			"Dapr_caller_app_id": {"a"}, "X-Kept": {"3"}}}, "X-Kept", ""},
		"no headers": {actors.Answer{Status: 200}, "", ""},
		"status 99":  {actors.Answer{Status: 99}, "", "bad_answer"},
		"status 0":   {actors.Answer{}, "", "bad_answer"},
		"large":      {actors.Answer{Status: 1000}, "", "bad_answer"},
		"headers":    {actors.Answer{Status: 200, Header: many}, "", "bad_answer"},
	} {
		for _, from := range []string{"stream", "node"} {
			t.Run(name+" of a "+from, func(t *testing.T) {
				given := c.answer
				given.Header = maps.Clone(given.Header)
				inWorld(t, plain, func(t *testing.T, w *world) {
					if from == "node" {
						w.elsewhere = &given
					} else {
						actors.NewService(api.App{ID: "app"}, w.runtime).Attach(&answering{answer: given})
						<-time.After(10 * time.Second) // until the stream hosts the actors
					}
					answer, err := w.runtime.Do(t.Context(), &actors.Call{Actor: api.Actor{Type: "T", ID: "1"},
						Method: "m", Verb: "POST"})
					if got := strings.Join(slices.Sorted(maps.Keys(answer.Header)), " "); got != c.kept ||
						reason(err) != c.reason {
						t.Errorf("headers %q, %v", got, err)
					}
				})
			})
		}
	}
}

func TestWire_NamesOfHeadersAreCanonicalAndBounded(t *testing.T) {
	few := actors.Answer{Status: 200, Header: http.Header{"connection": {"x"}}}
	got, err := actors.DecodeAnswer(actors.EncodeAnswer(&few))
	if err != nil || got.Header["Connection"] == nil {
		t.Errorf("%v, %v", got, err)
	}
	many := &actors.Call{Header: http.Header{"": make([]string, 10_001)}}
	if _, _, err := actors.DecodeCall(actors.EncodeCall(api.App{}, many)); err == nil {
		t.Error("a call with 10,001 headers is decoded")
	}
	if _, err := actors.DecodeAnswer(actors.EncodeAnswer(&actors.Answer{Header: many.Header})); err == nil {
		t.Error("an answer with 10,001 headers is decoded")
	}
}
