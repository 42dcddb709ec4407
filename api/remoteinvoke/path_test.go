package remoteinvoke_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestPath_ReachesAppUnchanged(t *testing.T) {
	a, b := pair(t, describe)
	for _, from := range []*node{a, b} {
		for _, path := range []string{
			"/a", "/a/", "/a//b", "/a//", "/a%2Fb", "/a%2fb/%7e~", "/%20+%2B", "/a%25b", "/ü",
			"/%FF", "/a;b=c,d", "/a:b@c", "/a|b^c\x60d{e}", "/a%3Fb%23c",
			"/...", "/a..b", "/.hidden/x.", "/method/method", "/" + strings.Repeat("x", 3000), "/a?", "/a??b",
			"/a?b=/../c", "/%41%42", "/v1.0/state/x",
		} {
			status, text := raw(t, from, "/v1.0/invoke/web/method"+path, "")
			if want := "GET " + path + "||"; status != http.StatusTeapot || text != want {
				t.Errorf("at %s: %q: %d %q", from.name, path, status, text)
			}
			if strings.HasPrefix(path, "/v1.0") {
				continue
			}
			if status, text := raw(t, from, path, "dapr-app-id: web\r\n"); text != "GET "+path+"||" {
				t.Errorf("by header at %s: %q: %d %q", from.name, path, status, text)
			}
		}
	}
}

func TestPath_LeadingSlashesByHeader(t *testing.T) {
	a, b := pair(t, describe)
	for _, from := range []*node{a, b} {
		for _, path := range []string{"//a", "///", "//a%2Fb", "//a/b?c"} {
			if status, text := raw(t, from, path, "dapr-app-id: web\r\n"); text != "GET "+path+"||" {
				t.Errorf("by header at %s: %q: %d %q", from.name, path, status, text)
			}
			want := "GET /" + strings.TrimLeft(path, "/") + "||"
			status, text := raw(t, from, "/v1.0/invoke/web/method"+path, "")
			if path == "///" {
				want = "ERR_DIRECT_INVOKE"
			}
			if !strings.Contains(text, want) {
				t.Errorf("after /method at %s: %q: %d %q, want %q", from.name, path, status, text, want)
			}
		}
	}
}

func TestPath_DotSegmentsAreRemoved(t *testing.T) {
	a, b := pair(t, describe)
	for _, from := range []*node{a, b} {
		for path, want := range map[string]string{"/a/../b": "/b", "/../../a/./b?c=../d": "/a/b?c=../d",
			"/a/b/..": "/a/", "/a/..//b%2F": "//b%2F"} {
			if status, text := raw(t, from, "/v1.0/invoke/web/method"+path, ""); status != http.StatusTeapot ||
				text != "GET "+want+"||" {
				t.Errorf("at %s: %s: %d %q", from.name, path, status, text)
			}
		}
	}
}

func TestPath_AmbiguousIsRefused(t *testing.T) {
	a, _ := pair(t, describe)
	for _, path := range []string{"/..", "/%2e%2e/b", "/%2e/b", "/a%2F..%2Fb", "/a/.%2E", "/a\\..\\b", "/a/..;x/b",
		"/a%00b", "/a%0ab", "/a%7F", "/%zz", "/%2", "/a#b", "/a#/b", "/a?b#c"} {
		if status, text := raw(t, a, "/v1.0/invoke/web/method"+path, ""); status != http.StatusBadRequest {
			t.Errorf("%q: %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/v1.0/invoke/web", "/v1.0/invoke/web/", "/v1.0/invoke/web/method",
		"/v1.0/invoke/web/method/", "/v1.0/invoke/a.b.c/method/x", "/v1.0/invoke//method/x",
		"/v1.0/invoke/we%2Fb/method/x"} {
		if status, text := raw(t, a, path, ""); status != http.StatusBadRequest ||
			!strings.Contains(text, "ERR_DIRECT_INVOKE") {
			t.Errorf("%q: %d %s", path, status, text)
		}
	}
}
