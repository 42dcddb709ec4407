package transcript_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/http/transcript"
)

const script = `A comment
of two lines.

== a save
> POST /x?a=b
> Name: value: more
> Empty: 
>
> {"a":
>
>   1}
< 204
< Etag: <etag 1>

== bytes
> PUT /bytes
>q "\x00 \n"
< 200
< A: 1
< A: 2
<q "tail "
`

func TestFormat_RoundTrips(t *testing.T) {
	t.Parallel()
	s, err := transcript.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(script, string(s.Format())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := string(s.Steps[0].Request.Body); got != "{\"a\":\n\n  1}" {
		t.Errorf("body %q", got)
	}
	if got := string(s.Steps[1].Request.Body); got != "\x00 \n" {
		t.Errorf("body %q", got)
	}
}

func TestParse_RefusesBrokenScripts(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no target":   "== x\n> GET\n",
		"stray line":  "== x\n> GET /\nstray\n",
		"header":      "== x\n> GET /\n> nocolon\n",
		"status":      "== x\n> GET /\n< fine\n",
		"quoted body": "== x\n> GET /\n>q nothing\n",
		"no request":  "== x\n",
	} {
		if _, err := transcript.Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// echo is a Doer that answers with the request.
type echo struct{ n int }

func (e *echo) Do(_ context.Context, r transcript.Request) (transcript.Response, error) {
	e.n++
	h := http.Header{"Date": {"today"}, "Etag": {fmt.Sprint("e", e.n/2)}, "Quorate-Age": {"17"}, "X-Target": {r.Target}}
	body := fmt.Sprintf(`{"etag":"e%d","ttlExpireTime":"2026-01-02T03:04:05Z",`+
		`"far":{"ttlExpireTime":"2999-01-02T03:04:05Z"},`+
		`"got":%q}`, e.n/2, r.Body)
	return transcript.Response{Status: 200, Header: h, Body: []byte(body)}, nil
}

func replay(t *testing.T, text string, o transcript.Options) (string, error) {
	t.Helper()
	s, err := transcript.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Replay(t.Context(), &echo{}, o)
	return string(out.Without(o.IgnoreHeaders).Format()), err
}

func TestSymbols_NameVaryingValuesForLaterSteps(t *testing.T) {
	t.Parallel()
	got, err := replay(t, "== one\n> GET /«3×ab»\n== two\n> GET /<etag 1>\n>\n> [«2,\"k#\"»]\n== three\n> GET /\n",
		transcript.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"< X-Target: /ababab\n", "< X-Target: /e0\n", `"got":"[\"k0\",\"k1\"]"`, "< Quorate-Age: <age>\n",
		`"ttlExpireTime":"<time>","far":{"ttlExpireTime":"2999-01-02T03:04:05Z"}`, "< Etag: <etag 1>\n",
		`"etag":"<etag 2>"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if strings.Contains(got, "Date") || strings.Contains(got, "<etag 3>") {
		t.Errorf("noise, or one value with two names:\n%s", got)
	}
}

func TestSymbols_UnknownNameIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"== x\n> GET /<etag 1>\n", "== x\n> GET /«3ab»\n", "== x\n> GET /«x×ab»\n",
		"== x\n> GET /«3×ab\n"} {
		if _, err := replay(t, text, transcript.Options{}); err == nil {
			t.Errorf("%q was replayed", text)
		}
	}
}

func TestReplay_IgnoresListedHeaders(t *testing.T) {
	t.Parallel()
	got, err := replay(t, "== x\n> GET /\n", transcript.Options{IgnoreHeaders: []string{"X-Target"}})
	if err != nil || strings.Contains(got, "X-Target") {
		t.Errorf("%v:\n%s", err, got)
	}
}
