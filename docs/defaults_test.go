package docs_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component/state"
)

// A request that names no level is eventual, and an eventual write may be lost with its leader. Every page on which a
// user decides says that, and how to change it.
func TestPages_NameTheDefaultConsistency(t *testing.T) {
	if state.Eventual.String() != "eventual" || state.MetadataDefaultConsistency != "defaultConsistency" {
		t.Fatal("the words of the pages are no longer those of the product")
	}
	for _, name := range []string{"README.md", "docs/consistency.md", "docs/migrate-from-dapr.md", "docs/sdks.md",
		"docs/tutorial.md", "docs/components/state.raft.md"} {
		text := strings.Join(strings.Fields(read(t, name)), " ")
		for _, want := range []string{"`eventual`", "defaultConsistency: strong", "lost"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}
