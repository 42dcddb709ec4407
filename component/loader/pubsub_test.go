package loader_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
)

func openPubSub(context.Context, loader.PubSubConfig) (pubsub.Broker, error) {
	return inmemory.Open(inmemory.Options{}), nil
}

func TestOpen_PubSub(t *testing.T) {
	r := newRig()
	set := r.mustOpen(t, doc("orders", "pubsub.fake", "publishingScopes=value: shop=a", "protectedTopics=value: b",
		"consumerID=value: '{namespace}-group'"))
	i, ok := set.PubSub("orders")
	if !ok {
		t.Fatal("there is no component orders")
	}
	if !i.Topics.MayPublish("shop", "a") || i.Topics.MayPublish("shop", "b") || i.Topics.MaySubscribe("shop", "b") {
		t.Errorf("the rules are %+v", i.Topics)
	}
	want := r.Namespace + "." + r.Apps[0] + "-group"
	if i.Group("shop") != want || i.TopicOf("a") != r.Namespace+"a" {
		t.Errorf("group %q, want %q; topic %q", i.Group("shop"), want, i.TopicOf("a"))
	}
	capabilities := func(c component.Status) bool {
		return c.Name == "orders" && slices.Equal(c.Capabilities, []string{"BULK_PUBSUB", "MESSAGE_TTL"})
	}
	if !slices.ContainsFunc(set.Statuses(), capabilities) {
		t.Errorf("statuses %+v", set.Statuses())
	}
}

func TestOpen_PubSubRefusesListWithoutTopics(t *testing.T) {
	for _, name := range []string{"allowedTopics", "protectedTopics"} {
		for _, text := range []string{",", " ", " , ,"} {
			if _, err := newRig().open(t, doc("orders", "pubsub.fake", name+"=value: '"+text+"'")); err == nil ||
				!strings.Contains(err.Error(), "names no topic") {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
		newRig().mustOpen(t, doc("orders", "pubsub.fake", name+"=value: ''"))
	}
}

func TestOpen_DefaultPubSubYieldsToItsName(t *testing.T) {
	byDefault := &component.Spec{Name: "pubsub", Type: "pubsub.fake"}
	r := newRig()
	r.DefaultPubSub = byDefault
	set := r.mustOpen(t, doc("other", "pubsub.fake", "consumerID=value: mine"))
	if i, ok := set.PubSub("pubsub"); !ok || i.Group("shop") != "shop" {
		t.Errorf("beside another component: %+v", i)
	}
	r = newRig()
	r.DefaultPubSub = byDefault
	set = r.mustOpen(t, doc("pubsub", "pubsub.fake", "consumerID=value: mine"))
	if i, ok := set.PubSub("pubsub"); !ok || i.Group("shop") != "mine" || len(set.PubSubs()) != 1 {
		t.Errorf("declared in a file: %+v", i)
	}
}

// Whether the open component would lose what it holds depends on its own type, not on the type of the changed document.
func TestReload_VolatileTypeOfTheOpenComponentDecides(t *testing.T) {
	for _, c := range []struct {
		from, to string
		stays    bool
	}{
		{"pubsub.fake", "pubsub.kept", true}, {"pubsub.kept", "pubsub.fake", false},
		{"configuration.lost", "configuration.kept", true}, {"configuration.kept", "configuration.lost", false},
		{"state.lost", "state.plain", true}, {"state.plain", "state.lost", false},
	} {
		r := newRig()
		r.Factories.PubSub["pubsub.kept"] = loader.PubSubFactory{Open: openPubSub}
		lost := r.Factories.State["state.plain"]
		lost.Volatile = true
		r.Factories.State["state.lost"] = lost
		open := func(context.Context, loader.ConfigurationConfig) (configuration.Store, error) {
			return idleItems{}, nil
		}
		r.Factories.Configuration = map[string]loader.ConfigurationFactory{"configuration.kept": {Open: open},
			"configuration.lost": {Open: open, Volatile: true}}
		old := r.mustOpen(t, doc("orders", c.from))
		write(t, filepath.Join(r.Paths[0], "00.yaml"), doc("orders", c.to))
		now, changes, err := loader.Reload(t.Context(), r.Options, old)
		if err != nil {
			t.Fatal(err)
		}
		if stays := len(changes.Failed) == 1; stays != c.stays || stays == (len(changes.Changed) == 1) {
			t.Errorf("%s to %s: %+v", c.from, c.to, changes)
		}
		if err := now.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestReload_VolatilePubSubStays(t *testing.T) {
	r := newRig()
	old := r.mustOpen(t, doc("orders", "pubsub.fake"))
	write(t, filepath.Join(r.Paths[0], "00.yaml"), doc("orders", "pubsub.fake", "consumerID=value: mine"))
	now, changes, err := loader.Reload(t.Context(), r.Options, old)
	if err != nil {
		t.Fatal(err)
	}
	if i, _ := now.PubSub("orders"); i == nil || i.ConsumerID != "" {
		t.Errorf("the changed component took effect: %+v", i)
	}
	if len(changes.Failed) != 1 || !strings.Contains(changes.Failed[0].Error(), "restart") {
		t.Errorf("changes %+v", changes)
	}
}
