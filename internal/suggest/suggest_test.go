package suggest_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/suggest"
)

func TestFor(t *testing.T) {
	candidates := []string{"http-port", "grpc-port", "logLevel", "a"}
	for word, want := range map[string]string{
		"http-port": "http-port",
		"httpPort":  "http-port",
		"HTTP_PORT": "http-port",
		"htpt-port": "http-port", // two neighbours swapped
		"htp-port":  "http-port",
		"grp-cport": "grpc-port",
		"loglevl":   "logLevel",
		"b":         "a",
		"port":      "",
		"":          "",
		"unrelated": "",
	} {
		if got := suggest.For(word, candidates); got != want {
			t.Errorf("To(%q) = %q, want %q", word, got, want)
		}
	}
	if got := suggest.For(strings.Repeat("x", 65), candidates); got != "" {
		t.Errorf("a word that is far too long is %q", got)
	}
	if got := suggest.For("x", nil); got != "" {
		t.Errorf("nothing to choose from gives %q", got)
	}
}
