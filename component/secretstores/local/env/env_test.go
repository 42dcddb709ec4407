package env_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/local/env"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

// environment is a fake environment. It has the values of variables by name.
type environment map[string]string

func (e environment) options(prefix string) env.Options {
	return env.Options{
		Prefix: prefix, Reserved: component.ReservedVariable,
		Lookup: func(name string) (string, bool) {
			value, ok := e[name]
			return value, ok
		},
		List: func() []string {
			var out []string
			for name := range maps.Keys(e) {
				out = append(out, name+"="+e[name])
			}
			return append(out, "=C:=C:\\odd", "no equals sign")
		},
	}
}

func sample() environment {
	return environment{
		"APP_DB": "hunter2=", "APP_EMPTY": "", "APP_": "no name is left", "OTHER": "x",
		"APP_API_TOKEN": "t0", "DAPR_API_TOKEN": "t1", "dapr_secret": "t2", "QUORATE_API_TOKEN": "t3",
		"Quorate_Cluster_Token": "t4",
	}
}

func TestStore_Conformance(t *testing.T) {
	secretstorestest.Run(t, func(*testing.T) secretstores.Store { return env.New(sample().options("APP_")) },
		secretstorestest.Options{
			Secrets: map[string]map[string]string{"DB": {"DB": "hunter2="}, "EMPTY": {"EMPTY": ""}},
			Absent:  "NONE", Twins: []string{"APP_DB", "db", "DB="},
		})
}

func TestGet_ReservedVariablesAreHidden(t *testing.T) {
	for _, prefix := range []string{"", "APP_", "DAPR_", "dapr", "QUORATE_", "QUORATE_API_"} {
		s := env.New(sample().options(prefix))
		for full := range sample() {
			name, ok := strings.CutPrefix(full, prefix)
			if !ok || !component.ReservedVariable(full) {
				continue
			}
			if got, err := s.Get(t.Context(), name, nil); !fault.Is(err, fault.NotFound) || got != nil {
				t.Errorf("prefix %q: Get(%q) = %v, %v", prefix, name, got, err)
			}
		}
		all, err := s.Bulk(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, secret := range all {
			if component.ReservedVariable(prefix + name) {
				t.Errorf("prefix %q: Bulk shows %s: %v", prefix, name, secret)
			}
		}
	}
}

func TestGet_WithoutPrefix(t *testing.T) {
	got, err := env.New(sample().options("")).Bulk(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"APP_DB": {"APP_DB": "hunter2="}, "APP_EMPTY": {"APP_EMPTY": ""},
		"APP_": {"APP_": "no name is left"}, "OTHER": {"OTHER": "x"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
