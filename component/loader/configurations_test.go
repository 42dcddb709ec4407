package loader_test

import (
	"context"
	"slices"
	"testing"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/loader"
)

// idleItems is a configuration store that is only opened and closed.
type idleItems struct{ configuration.Store }

func (idleItems) Close() error { return nil }

// TestOpen_ConfigurationStoreWithoutWriters opens a store whose type does not support writes, such as
// configuration.redis, and a store whose type does.
func TestOpen_ConfigurationStoreWithoutWriters(t *testing.T) {
	r := newRig()
	open := func(context.Context, loader.ConfigurationConfig) (configuration.Store, error) {
		return idleItems{}, nil
	}
	r.Factories.Configuration = map[string]loader.ConfigurationFactory{
		"configuration.read":    {Open: open},
		"configuration.written": {Open: open, Fields: loader.WrittenFields()},
	}
	set := r.mustOpen(t, doc("outside", "configuration.read"),
		doc("own", "configuration.written", "writers=value: a, b"))
	outside, found := set.ConfigurationStore("outside")
	if !found || len(outside.Writers) != 0 {
		t.Errorf("%+v", outside)
	}
	if own, found := set.ConfigurationStore("own"); !found || !slices.Equal(own.Writers, []string{"a", "b"}) {
		t.Errorf("%+v", own)
	}
}
