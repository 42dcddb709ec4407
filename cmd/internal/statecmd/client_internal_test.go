package statecmd

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
)

// TestClient_ReadsLongKeyOfStoreWithoutETags checks that a key which is read with a bulk request is found by its data.
func TestClient_ReadsLongKeyOfStoreWithoutETags(t *testing.T) {
	present, absent := strings.Repeat("p", maxPathKey+1), strings.Repeat("a", maxPathKey+1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := `[{"key":"` + absent + `"}]`
		if strings.Contains(string(body), present) {
			answer = `[{"key":"` + present + `","data":{"a":1}}]`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	c := stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}
	if it, err := c.get(t.Context(), "statestore", present, readOptions{}); err != nil || !it.Found ||
		string(it.Value) != `{"a":1}` {
		t.Errorf("a present key: %+v, %v", it, err)
	}
	if it, err := c.get(t.Context(), "statestore", absent, readOptions{}); err != nil || it.Found {
		t.Errorf("an absent key: %+v, %v", it, err)
	}
}
