package demoactors

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/internal/testutil"
)

// TestDemo_BooksBalance runs make demo-actors from start to end, and kills each pair once.
func TestDemo_BooksBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	var out testutil.Output
	d := demo{out: launcher.NewLines(&out), binary: labtest.Build(t, "cmd/quorate"),
		app: []string{labtest.Build(t, "cmd/lab"), AppWord}}
	err := d.run(t.Context())
	if t.Log(out.String()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"n1 hosts actors again", "n2 hosts actors again", "n3 hosts actors again",
		"The books balance"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if len(d.ledger.acknowledged) == 0 {
		t.Error("no transfer was acknowledged")
	}
}
