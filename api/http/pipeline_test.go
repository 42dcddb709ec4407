package http_test

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/middleware"
)

// onlyOne refuses every request except the first one.
type onlyOne struct{ n int }

func (o *onlyOne) Filter(*http.Request) error {
	if o.n++; o.n > 1 {
		return &middleware.Refusal{Status: http.StatusTooManyRequests, Code: "ERR_RATE_LIMIT", Message: "too many"}
	}
	return nil
}

// Requests without a token do not reach the middleware, so they do not count against a rate limit.
func TestPipeline_FollowsTheToken(t *testing.T) {
	f := newFixture(t)
	f.Tokens = apitest.Tokens("right")
	f.refit()
	f.config.Pipeline = apihttp.NewPipeline(true)
	f.config.Pipeline.Set([]*middleware.Instance{{Name: "limit", Filter: &onlyOne{}}})
	face := newFace(t, f)
	get := func(want int, header ...string) {
		t.Helper()
		if w := call(t, face, "GET", "/v1.0/metadata", "", header...); w.Code != want {
			t.Errorf("%d %s, want %d", w.Code, w.Body, want)
		}
	}
	for range 5 {
		get(http.StatusUnauthorized)
		get(http.StatusUnauthorized, "Dapr-Api-Token", "wrong")
	}
	get(http.StatusOK, "Dapr-Api-Token", "right")
	get(http.StatusTooManyRequests, "Dapr-Api-Token", "right")
	if w := call(t, face, "GET", "/v1.0/healthz", ""); w.Code != http.StatusNoContent {
		t.Errorf("a health probe: %d %s", w.Code, w.Body)
	}
}
