package pubsub

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Kind is how a subscription was declared.
type Kind string

// The kinds, as the metadata API names them.
const (
	Declarative  Kind = "DECLARATIVE"
	Programmatic Kind = "PROGRAMMATIC"
	Streaming    Kind = "STREAMING"
)

// RuleDefinition routes events to Path if the expression Match is true for them. An empty expression matches all
// events.
type RuleDefinition struct {
	Match string `json:"match"`
	Path  string `json:"path"`
}

// BulkDefinition asks for several messages in one delivery.
type BulkDefinition struct {
	Enabled     bool  `json:"enabled"`
	MaxMessages int32 `json:"maxMessagesCount"`   // 0 = 100
	MaxAwaitMs  int32 `json:"maxAwaitDurationMs"` // 0 = 1000
}

// Definition declares a subscription.
type Definition struct {
	PubSub     string
	Topic      string
	Metadata   map[string]string
	Rules      []RuleDefinition
	Default    string // path of events that no rule matches; empty = they are dropped
	DeadLetter string // topic; empty = none
	Bulk       BulkDefinition
	Kind       Kind
	Source     string `json:"-"` // where the subscription is declared, for the log
}

// fromApplication is the Source of a definition that the application lists.
const fromApplication = "the list of the application"

// itemJSON is one subscription as an application lists it.
type itemJSON struct {
	PubSub     string            `json:"pubsubname"`
	Topic      string            `json:"topic"`
	Metadata   map[string]string `json:"metadata"`
	Route      string            `json:"route"`
	DeadLetter string            `json:"deadLetterTopic"`
	Bulk       BulkDefinition    `json:"bulkSubscribe"`
	Routes     struct {
		Rules   []RuleDefinition `json:"rules"`
		Default string           `json:"default"`
	} `json:"routes"`
}

// maxSubscriptions is how many subscriptions one application may have.
const maxSubscriptions = 1000

// ParseDefinitions parses the answer of an application to GET /dapr/subscribe. It omits subscriptions without a route,
// and returns their topics in dropped.
func ParseDefinitions(body []byte) (out []Definition, dropped []string, err error) {
	const op = "pubsub.ParseDefinitions"
	if len(body) == 0 {
		return nil, nil, nil
	}
	var items []itemJSON
	if err := json.Unmarshal(body, &items); err != nil {
		return nil, nil, fault.New(fault.Invalid, op, "the answer is not a list of subscriptions")
	}
	if len(items) > maxSubscriptions {
		return nil, nil, fault.New(fault.TooLarge, op, fmt.Sprintf("there are %d subscriptions; the limit is %d",
			len(items), maxSubscriptions))
	}
	for i := range items {
		item := &items[i]
		d := Definition{PubSub: item.PubSub, Topic: item.Topic, Metadata: item.Metadata, Rules: item.Routes.Rules,
			Default: item.Routes.Default, DeadLetter: item.DeadLetter, Bulk: item.Bulk, Kind: Programmatic,
			Source: fromApplication}
		if d.Default == "" {
			d.Default = item.Route
		}
		if d.Default == "" && len(d.Rules) == 0 {
			dropped = append(dropped, fault.Shorten(item.Topic, 200))
			continue
		}
		out = append(out, d)
	}
	return out, dropped, nil
}

// Defaults and bounds of bulk subscriptions.
const (
	defaultBulkMessages = 100
	defaultBulkAwait    = time.Second
	maxBulkMessages     = 10_000
	maxBulkAwait        = time.Minute
)

// Subscription is a definition that was checked. It is immutable.
type Subscription struct {
	Definition
	rules []rule
	raw   bool
	bulk  int           // messages of one delivery; 0 = no bulk
	await time.Duration // maximum time until a bulk is full
	key   string        // text that is equal for equal definitions
}

// Check validates a definition and returns it as a Subscription. The error for an invalid definition names the topic.
func (d Definition) Check() (*Subscription, error) {
	const op = "pubsub.Check"
	s := &Subscription{Definition: d, raw: raw(d.Metadata)}
	about := "the subscription to topic " + fault.Shorten(d.Topic, 200) + " of " + fault.Shorten(d.PubSub, 200)
	if err := pubsub.CheckTopic(d.Topic); err != nil {
		return nil, fault.New(fault.Invalid, op, about+": the name of the topic "+err.Error())
	}
	if d.DeadLetter != "" {
		if err := pubsub.CheckTopic(d.DeadLetter); err != nil {
			return nil, fault.New(fault.Invalid, op, about+": the name of the dead-letter topic "+err.Error())
		}
	}
	if d.DeadLetter == d.Topic { // a message that always fails would be delivered again forever
		return nil, &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  about + ": the dead-letter topic is the topic itself",
			Hint: "name another topic, or leave deadLetterTopic out, so that failed messages come again"}
	}
	for _, topic := range []string{d.Topic, d.DeadLetter} {
		if text := reserved(topic); text != "" {
			return nil, fault.New(fault.Invalid, op, about+": the name of a topic "+text)
		}
	}
	if d.PubSub == "" {
		return nil, fault.New(fault.Invalid, op, about+": the name of the component is empty")
	}
	if len(d.Rules) > maxRules {
		return nil, fault.New(fault.TooLarge, op, fmt.Sprintf("%s: there are %d rules; the limit is %d", about,
			len(d.Rules), maxRules))
	}
	for _, one := range d.Rules {
		r, err := compile(one.Match, one.Path)
		if err != nil {
			return nil, fault.Wrap(err, op, about)
		}
		s.rules = append(s.rules, r)
	}
	if d.Default != "" || d.Kind == Streaming {
		s.rules = append(s.rules, rule{path: d.Default})
	}
	if d.Bulk.Enabled && d.Kind != Streaming {
		s.bulk = within(int(d.Bulk.MaxMessages), defaultBulkMessages, maxBulkMessages)
		s.await = within(time.Duration(d.Bulk.MaxAwaitMs)*time.Millisecond, defaultBulkAwait, maxBulkAwait)
	}
	key, err := json.Marshal(d)
	if err != nil {
		return nil, fault.Wrap(err, op, about)
	}
	s.key = string(key)
	return s, nil
}

// within returns value, but at most limit. It returns byDefault if value is not positive.
func within[N int | time.Duration](value, byDefault, limit N) N {
	if value <= 0 {
		return byDefault
	}
	return min(value, limit)
}

// Paths returns the rules of a subscription, as the metadata API shows them.
func (s *Subscription) Paths() []RuleDefinition {
	out := make([]RuleDefinition, len(s.rules))
	for i := range s.rules {
		out[i] = RuleDefinition{s.rules[i].match, s.rules[i].path}
	}
	return out
}

// effective returns one definition for each pair of component and topic. Programmatic definitions have precedence over
// declarative ones. Of several programmatic definitions for the same topic, the last one counts. Of several declarative
// ones, the first one counts.
func effective(declared, programmatic []Definition) (out []Definition) {
	at := func(d *Definition) int {
		return slices.IndexFunc(out, func(o Definition) bool { return o.PubSub == d.PubSub && o.Topic == d.Topic })
	}
	for i := range declared {
		if at(&declared[i]) < 0 {
			out = append(out, declared[i])
		}
	}
	for i := range programmatic {
		if n := at(&programmatic[i]); n >= 0 {
			out[n] = programmatic[i]
			continue
		}
		out = append(out, programmatic[i])
	}
	return out
}

// DefinitionsOf returns the subscriptions that a gRPC application lists.
func DefinitionsOf(list *runtimev1.ListTopicSubscriptionsResponse) ([]Definition, error) {
	items := list.GetSubscriptions()
	if len(items) > maxSubscriptions {
		return nil, fault.New(fault.TooLarge, "pubsub.DefinitionsOf",
			fmt.Sprintf("there are %d subscriptions; the limit is %d", len(items), maxSubscriptions))
	}
	out := make([]Definition, len(items))
	for i, item := range items {
		d := Definition{PubSub: item.GetPubsubName(), Topic: item.GetTopic(), Metadata: item.GetMetadata(),
			Default: item.GetRoutes().GetDefault(), DeadLetter: item.GetDeadLetterTopic(), Kind: Programmatic,
			Source: fromApplication}
		for _, r := range item.GetRoutes().GetRules() {
			d.Rules = append(d.Rules, RuleDefinition{r.GetMatch(), r.GetPath()})
		}
		if d.Default == "" && len(d.Rules) == 0 {
			d.Rules = []RuleDefinition{{}} // the empty path
		}
		if b := item.GetBulkSubscribe(); b != nil {
			d.Bulk = BulkDefinition{b.GetEnabled(), b.GetMaxMessagesCount(), b.GetMaxAwaitDurationMs()}
		}
		out[i] = d
	}
	return out, nil
}
