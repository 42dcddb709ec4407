package loader_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/internal/fault"
)

// Read fails for a component of Dapr that is not built in. The message names the file, the building block, and what
// the user can do.
func TestRead_ExplainsTypesThatAreNotBuiltIn(t *testing.T) {
	const tail = ", or remove it from this folder, or set ignoreErrors: true in its spec to start without it)"
	for typ, want := range map[string]string{
		"pubsub.kafka": "the component type pubsub.kafka is unknown: no publish/subscribe broker of this type and " +
			"version is built in (use one of ",
		"state.fakke": "no state store of this type and version is built in (did you mean state.fake?" + tail,
		"conversation.openai": "Quorate does not serve Dapr's building block conversation (remove it from this " +
			"folder, or set ignoreErrors: true in its spec",
		"crypto.dapr.jwks": "Dapr's building block cryptography",
		"statestore":       "a type begins with state., ",
	} {
		path := filepath.Join(t.TempDir(), "own.yaml")
		write(t, path, doc("own", typ))
		_, err := loader.Read(newRig(path).Options)
		text := fault.Text(err)
		if !fault.Is(err, fault.NotFound) || !strings.Contains(text, want) || !strings.Contains(text, ".yaml:") ||
			!strings.Contains(text, "component own ("+typ+")") {
			t.Errorf("%s: %s", typ, text)
		}
	}
}

// Skipped returns the components that ignoreErrors hides, so the user learns which components the node lacks.
func TestPlan_SkippedNamesWhatIgnoreErrorsHides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.yaml")
	write(t, path, doc("queue", "pubsub.kafka", "ignoreErrors: true"))
	plan, err := loader.Read(newRig(path).Options)
	if err != nil {
		t.Fatal(err)
	}
	skipped := plan.Skipped()
	if len(skipped) != 1 {
		t.Fatalf("%v", skipped)
	}
	text := skipped[0].String()
	const advice = "set ignoreErrors"
	if !strings.HasPrefix(text, "skipped because of ignoreErrors: "+path) || strings.Contains(text, advice) {
		t.Error(text)
	}
}
