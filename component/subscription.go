package component

import (
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Subscription is the content of a document of kind Subscription. Its fields follow version v2alpha1. A document of
// version v1alpha1 has only one route, which becomes Default.
type Subscription struct {
	Name       string
	Scopes     []string // application ids of the subscribers; empty = all
	Pos        Pos
	PubSub     string
	Topic      string
	Metadata   map[string]string
	Rules      []SubscriptionRule
	Default    string // path of events that no rule matches; empty = they are dropped
	DeadLetter string // topic for messages that cannot be delivered; empty = none

	Bulk        bool // several messages come in one delivery
	MaxMessages int  // largest number of messages in one delivery; 0 = the default
	MaxAwaitMs  int  // longest wait in milliseconds until a delivery is full; 0 = the default
}

// SubscriptionRule sends the events for which the expression Match is true to Path.
type SubscriptionRule struct{ Match, Path string }

// ParseSubscription parses a document of kind Subscription. Unknown fields are errors with file and line.
func ParseSubscription(doc Document) (Subscription, error) {
	p := docParser{file: doc.Pos.File}
	s := Subscription{Name: doc.Name, Scopes: doc.Scopes, Pos: doc.Pos}
	ignore := func(*yaml.Node) {}
	p.readFields(doc.Body, "", fields{
		"apiVersion": ignore, "kind": ignore, "metadata": ignore, "scopes": ignore, "status": ignore,
		"spec": func(n *yaml.Node) { p.subscription(n, &s) },
	})
	if len(p.problems) == 0 {
		for name, value := range map[string]string{"spec.pubsubname": s.PubSub, "spec.topic": s.Topic} {
			if value == "" {
				p.problems.add(doc.Pos, "", "%s is missing", name)
			}
		}
	}
	p.problems.order(doc)
	return s, p.problems.Err("component.ParseSubscription")
}

func (p *docParser) subscription(n *yaml.Node, s *Subscription) {
	text := func(into *string, what string) func(*yaml.Node) {
		return func(n *yaml.Node) { *into = p.text(n, what) }
	}
	p.readFields(n, "spec", fields{
		"pubsubname":      text(&s.PubSub, "spec.pubsubname"),
		"topic":           text(&s.Topic, "spec.topic"),
		"route":           text(&s.Default, "spec.route"),
		"deadLetterTopic": text(&s.DeadLetter, "spec.deadLetterTopic"),
		"metadata":        func(n *yaml.Node) { s.Metadata = p.pairs(n, "spec.metadata") },
		"routes": func(n *yaml.Node) {
			if isNull(n) {
				return
			}
			p.readFields(n, "spec.routes", fields{
				"default": text(&s.Default, "spec.routes.default"),
				"rules":   func(n *yaml.Node) { s.Rules = p.rules(n) },
			})
		},
		"bulkSubscribe": func(n *yaml.Node) {
			if isNull(n) {
				return
			}
			p.readFields(n, "spec.bulkSubscribe", fields{
				"enabled":            func(n *yaml.Node) { s.Bulk = p.boolean(n, "spec.bulkSubscribe.enabled") },
				"maxMessagesCount":   func(n *yaml.Node) { s.MaxMessages = p.count(n, "maxMessagesCount") },
				"maxAwaitDurationMs": func(n *yaml.Node) { s.MaxAwaitMs = p.count(n, "maxAwaitDurationMs") },
			})
		},
	})
}

func (p *docParser) rules(n *yaml.Node) (out []SubscriptionRule) {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "spec.routes.rules must be a list of match and path, not %s", describe(n))
		return nil
	}
	for _, element := range n.Content {
		var r SubscriptionRule
		p.readFields(element, "an element of spec.routes.rules", fields{
			"match": func(n *yaml.Node) { r.Match = p.text(n, "match") },
			"path":  func(n *yaml.Node) { r.Path = p.text(n, "path") },
		})
		out = append(out, r)
	}
	return out
}

// pairs reads a mapping of names to texts. what describes the mapping in error messages.
func (p *docParser) pairs(n *yaml.Node, what string) map[string]string {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.problems.add(p.pos(n), "", "%s must be a mapping, not %s", what, describe(n))
		return nil
	}
	out := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		out[n.Content[i].Value] = p.text(n.Content[i+1], what+"."+n.Content[i].Value)
	}
	return out
}

// count reads a number that is not negative. what is the name of a field of spec.bulkSubscribe, for error messages.
func (p *docParser) count(n *yaml.Node, what string) int {
	text := p.text(n, "spec.bulkSubscribe."+what)
	if text == "" {
		return 0
	}
	out, err := strconv.ParseInt(text, 10, 32)
	if err != nil || out < 0 {
		p.problems.add(p.pos(n), "", "spec.bulkSubscribe.%s is %q, which is not a number from 0", what, text)
	}
	return int(out)
}
