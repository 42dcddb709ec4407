package builtin_test

import (
	"strings"
	"testing"
)

func TestDocs_BindingPagesNameEveryAlias(t *testing.T) {
	for typ, factory := range factories(t).Bindings {
		text := page(t, typ+".md")
		for _, f := range factory.Fields {
			for _, alias := range f.Aliases {
				if !strings.Contains(text, "`"+alias+"`") {
					t.Errorf("%s.md does not name %s, which is %s", typ, alias, f.Name)
				}
			}
		}
	}
}
