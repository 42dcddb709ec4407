package pubsub_test

import (
	"testing"

	"github.com/quorate/quorate/component/pubsub"
)

func TestTopics_Rules(t *testing.T) {
	parse := func(text string) map[string][]string {
		scopes, err := pubsub.ParseTopicScopes(text)
		if err != nil {
			t.Fatal(err)
		}
		return scopes
	}
	for name, c := range map[string]struct {
		topics     pubsub.Topics
		app, topic string
		want       bool
	}{
		"no rules":               {pubsub.Topics{}, "shop", "a", true},
		"allowed":                {pubsub.Topics{Allowed: pubsub.ParseTopics(" a , b")}, "shop", "b", true},
		"not allowed":            {pubsub.Topics{Allowed: pubsub.ParseTopics("a,b")}, "shop", "c", false},
		"protected":              {pubsub.Topics{Protected: []string{"a"}}, "shop", "a", false},
		"beside a protected one": {pubsub.Topics{Protected: []string{"a"}}, "shop", "b", true},
		"in the list":            {pubsub.Topics{Publishing: parse("shop = a, b ; till=c")}, "shop", "b", true},
		"not in the list":        {pubsub.Topics{Publishing: parse("shop=a,b")}, "shop", "c", false},
		"another has a list":     {pubsub.Topics{Publishing: parse("till=a")}, "shop", "c", true},
		"empty list":             {pubsub.Topics{Publishing: parse("shop=")}, "shop", "a", false},
		"protected, in the list": {pubsub.Topics{Protected: []string{"a"}, Publishing: parse("shop=a")},
			"shop", "a", true},
		"list cannot widen allowed": {pubsub.Topics{Allowed: []string{"b"}, Publishing: parse("shop=a")},
			"shop", "a", false},
	} {
		if got := c.topics.MayPublish(c.app, c.topic); got != c.want {
			t.Errorf("%s: MayPublish is %t", name, got)
		}
		mirrored := c.topics
		mirrored.Publishing, mirrored.Subscribed = nil, c.topics.Publishing
		if got := mirrored.MaySubscribe(c.app, c.topic); got != c.want {
			t.Errorf("%s: MaySubscribe is %t", name, got)
		}
	}
	for _, text := range []string{"shop", "=a", "shop=a;till"} {
		if scopes, err := pubsub.ParseTopicScopes(text); err == nil {
			t.Errorf("%q was parsed as %v", text, scopes)
		}
	}
}
