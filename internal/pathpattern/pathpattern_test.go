package pathpattern_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pathpattern"
)

func TestSet_Match(t *testing.T) {
	s, err := pathpattern.New([]string{"/orders/{id}", "orders/all", "/v1.0/state/s/{key}", "/files/{rest...}",
		"/v1.0/invoke/web/method/carts/{id}"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/orders/7":                          "/orders/{id}",
		"/orders/all":                        "/orders/all",
		"/orders":                            "",
		"/orders/7/items":                    "",
		"//v1.0//state/s/k":                  "/v1.0/state/s/{key}",
		"/v1.0/invoke/web/method/carts/7":    "/v1.0/invoke/web/method/carts/{id}",
		"/v1.0/invoke/other/method/orders/7": "/v1.0/invoke/{app_id}/method/orders/{id}",
		"/files/a/b":                         "/files/{rest...}",
		"":                                   "",
	} {
		if got := s.Match(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
	if got := (pathpattern.Set{}).Match("/orders/7"); got != "" {
		t.Errorf("no patterns: %q", got)
	}
}

func TestNew_RefusesBadPatterns(t *testing.T) {
	for _, patterns := range [][]string{{"/a/{"}, {"/a/{x}/{x}"}, {"/a/{x}/b", "/a/b/{x}"}} {
		if _, err := pathpattern.New(patterns); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), ".go") {
			t.Errorf("%q: %v", patterns, err)
		}
	}
}
