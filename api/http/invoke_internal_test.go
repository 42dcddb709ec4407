package http

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// As in Dapr, the application id in the header takes precedence over those in the user info and in the path.
func TestDecodeCall_HeaderWinsOverUserAndPath(t *testing.T) {
	const path = "/v1.0/invoke/inpath/method/a"
	for _, c := range []struct{ header, user, target, path string }{
		{"", "", "inpath", "/a"},
		{"", "byuser", "byuser", path},
		{"byheader", "", "byheader", path},
		{"byheader", "byuser", "byheader", path},
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if c.header != "" {
			r.Header.Set("dapr-app-id", c.header)
		}
		if c.user != "" {
			r.SetBasicAuth("dapr-app-id", c.user)
		}
		call, err := decodeCall(r)
		if err != nil || call.Target != c.target || call.Path != c.path {
			t.Errorf("%+v: %+v, %v", c, call, err)
		}
	}
}
