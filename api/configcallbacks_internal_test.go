package api

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/quorate/quorate/component/configuration"
)

// Deletions of ever-new keys do not grow what waits for an application that takes nothing. Values are kept.
func TestCallbacks_DropOldDeletions(t *testing.T) {
	p := &callbacks{waiting: map[string]*callback{}, log: slog.New(slog.DiscardHandler)}
	add := func(order int, item configuration.Item, calling bool) {
		p.waiting[item.Key] = &callback{item: item, order: order, calling: calling}
	}
	add(0, configuration.Item{Key: "value", Value: "1", Version: "1"}, false)
	add(1, configuration.Item{Key: "calling"}, true)
	for i := 2; i <= configuration.MaxWaiting; i++ {
		add(i, configuration.Item{Key: fmt.Sprint("deleted-", i)}, false)
		p.trim()
	}
	newest := fmt.Sprint("deleted-", configuration.MaxWaiting)
	for _, key := range []string{"value", "calling", newest} {
		if p.waiting[key] == nil {
			t.Errorf("%s does not wait any more", key)
		}
	}
	if p.waiting["deleted-2"] != nil || len(p.waiting) > configuration.MaxWaiting {
		t.Errorf("%d keys wait", len(p.waiting))
	}
}
