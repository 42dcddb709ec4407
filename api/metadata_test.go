package api_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/api"
)

type noInfo struct{}

func (noInfo) Describe() api.Description { return api.Description{RuntimeVersion: "v"} }

func TestMetadata_BoundsNumberAndSize(t *testing.T) {
	t.Parallel()
	m := api.NewMetadata(api.App{ID: "shop"}, noInfo{}, api.Limits{ExtendedValues: 2, ExtendedSize: 4})
	steps := []struct {
		name, value string
		says        string // empty = accepted
	}{
		{"a", "1", ""},
		{"b", "2", ""},
		{"c", "3", "too many metadata values: 3; the limit is 2"},
		{"a", "again", "the limit is 4"},
		{"a", "2", ""},
		{"", "x", "is empty"},
		{"longname", "x", "the limit is 4"},
		{"b", "\xff", "not valid UTF-8"},
	}
	for _, step := range steps {
		err := m.Set(step.name, step.value)
		if step.says == "" && err != nil || step.says != "" &&
			(err == nil || !strings.Contains(err.Error(), step.says)) {
			t.Errorf("%q = %q: %v, want %q", step.name, step.value, err, step.says)
		}
	}
	_, set := m.Describe()
	if len(set) != 2 || set["a"] != "2" || set["b"] != "2" {
		t.Errorf("values are %v", set)
	}
	set["a"] = "changed"
	if _, again := m.Describe(); again["a"] != "2" {
		t.Error("a caller can change the values")
	}
}

func TestMetadata_ConcurrentSetAndRead(t *testing.T) {
	t.Parallel()
	m := api.NewMetadata(api.App{ID: "shop"}, noInfo{}, api.Limits{})
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 20 {
				if err := m.Set(fmt.Sprintf("%d.%d", i, j), "x"); err != nil {
					t.Error(err)
				}
				m.Describe()
			}
		})
	}
	running.Wait()
	if _, set := m.Describe(); len(set) != 160 {
		t.Errorf("%d values", len(set))
	}
}
