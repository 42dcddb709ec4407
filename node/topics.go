package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	apipubsub "github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// publisher is the source of the CloudEvents that operators publish.
const publisher = "quorate"

// maxNamed is how many names the hint of an error lists at most.
const maxNamed = 10

// topicService implements the topic operations of the admin API. It does not check which applications may use a
// component or a topic, because users of the admin socket have all rights.
type topicService struct {
	components *components.Components
	host       *raftfsm.Host
	log        *slog.Logger
	now        func() time.Time
}

func newTopicService(n *Node) topicService {
	return topicService{n.components, n.host, n.deps.Logger, n.deps.Now}
}

// instance returns the pubsub component with the given name. It returns fault.NotFound if there is none, and
// fault.Unavailable until the components are open.
func (s topicService) instance(name string) (*pubsub.Instance, error) {
	const op = "node.Topics"
	if !s.components.Loaded() {
		return nil, fault.New(fault.Unavailable, op, "this node has not opened its components")
	}
	if i, ok := s.components.PubSub(name); ok {
		return i, nil
	}
	var names []string
	for _, i := range s.components.PubSubs() {
		names = append(names, i.Name)
	}
	return nil, &fault.Error{Code: fault.NotFound, Op: op, Key: name, Msg: "this node has no pubsub component " +
		strconv.Quote(fault.Shorten(name, 128)), Hint: existing(name, names, "pubsub components")}
}

// existing returns a hint for the error that a name does not exist. The hint suggests the most similar existing name.
// If none is similar, it lists up to maxNamed names. The parameter what is the plural noun for the names, such as
// "topics".
func existing(name string, names []string, what string) string {
	if near := suggest.For(name, names); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	if len(names) == 0 {
		return "there are no " + what
	}
	slices.Sort(names)
	names = slices.Compact(names)
	hint := "the " + what + " are " + strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		hint += " and " + strconv.Itoa(more) + " more"
	}
	return hint
}

// replicated returns the pubsub component with the given name, and access to its topics. It returns an error if the
// component is not of type pubsub.raft.
func (s topicService) replicated(name string) (*pubsub.Instance, *topics.Admin, error) {
	i, err := s.instance(name)
	if err != nil {
		return nil, nil, err
	}
	if i.Type != components.TypePubSubRaft {
		return nil, nil, &fault.Error{Code: fault.Unimplemented, Op: "node.Topics", Key: name,
			Msg: "pubsub component " + name + " is of type " + i.Type + ", whose topics this node cannot see",
			Hint: "the topics of type " + components.TypePubSubRaft + " can be seen; use the tools of the broker for " +
				"the others"}
	}
	return i, s.host.Topics(i.Namespace, i.Name), nil
}

// ListTopics implements admin.Topics.
func (s topicService) ListTopics(ctx context.Context, name, topic string) (all []schema.TopicStatus, err error) {
	if name != "" {
		return s.listOf(ctx, name, topic)
	}
	if topic != "" {
		return nil, fault.New(fault.Invalid, "node.Topics", "the pubsub component of the topic is not named")
	}
	if !s.components.Loaded() {
		return nil, fault.New(fault.Unavailable, "node.Topics", "this node has not opened its components")
	}
	for _, i := range s.components.PubSubs() {
		if i.Type != components.TypePubSubRaft {
			continue
		}
		list, err := s.listOf(ctx, i.Name, "")
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func (s topicService) listOf(ctx context.Context, name, topic string) ([]schema.TopicStatus, error) {
	i, t, err := s.replicated(name)
	if err != nil {
		return nil, err
	}
	// All topics are described, because DeadTo of a topic comes from the descriptions of other topics.
	found, err := t.Describe(ctx, "")
	if err != nil {
		return nil, err
	}
	list := s.statuses(i, found)
	if topic == "" {
		return list, nil
	}
	var names []string
	for n := range list {
		if list[n].Topic == topic {
			return list[n : n+1], nil
		}
		names = append(names, list[n].Topic)
	}
	return nil, errNoTopic(name, topic, names)
}

func errNoTopic(name, topic string, names []string) error {
	return &fault.Error{Code: fault.NotFound, Op: "node.Topics", Key: topic, Msg: "pubsub component " + name +
		" has no topic " + strconv.Quote(fault.Shorten(topic, 128)), Hint: existing(topic, names, "topics")}
}

// statuses returns the status of each topic. Each element of parts describes one topic in one Raft group. The figures
// of elements with the same topic are added up.
func (s topicService) statuses(i *pubsub.Instance, parts []topics.Description) (list []schema.TopicStatus) {
	now := s.now()
	named := func(topic string) string { return strings.TrimPrefix(topic, i.Prefix) }
	at := map[string]int{}
	for n := range parts {
		d := &parts[n]
		name := named(d.Name)
		index, known := at[name]
		if !known {
			index = len(list)
			at[name] = index
			list = append(list, schema.TopicStatus{PubSub: i.Name, Topic: name, Groups: []schema.TopicGroupStatus{},
				Parts: []schema.TopicPart{}})
		}
		t := &list[index]
		t.Messages += d.Messages
		t.Bytes += d.Bytes
		t.MaxBytes = max(t.MaxBytes, d.Policy.MaxBytes)
		t.RetentionMS = max(t.RetentionMS, d.Policy.Retention.Milliseconds())
		t.Full, t.Estimated = t.Full || d.Full, t.Estimated || d.Estimated
		if d.Messages > 0 {
			t.Parts = append(t.Parts, schema.TopicPart{RaftGroup: d.Group, Messages: d.Messages, Newest: d.Newest})
		}
		for _, source := range d.Sources {
			t.DeadOf = append(t.DeadOf, named(source))
		}
		for j := range d.Groups {
			addGroup(t, &d.Groups[j], now)
		}
	}
	for n := range list {
		slices.Sort(list[n].DeadOf)
		list[n].DeadOf = slices.Compact(list[n].DeadOf)
		for _, source := range list[n].DeadOf {
			if from, known := at[source]; known {
				list[from].DeadTo = append(list[from].DeadTo, list[n].Topic)
			}
		}
	}
	return list
}

// addGroup adds the figures of a consumer group in one Raft group to the status of a topic. Call it for each Raft
// group, because each one has a part of the messages.
func addGroup(t *schema.TopicStatus, d *topics.GroupDescription, now time.Time) {
	n := slices.IndexFunc(t.Groups, func(g schema.TopicGroupStatus) bool { return g.Group == d.Name })
	if n < 0 {
		n = len(t.Groups)
		t.Groups = append(t.Groups, schema.TopicGroupStatus{Group: d.Name})
	}
	g := &t.Groups[n]
	g.Subscribers = max(g.Subscribers, d.Subscribers) // a subscription is in every Raft group
	g.Lag += d.Lag
	g.Capped = g.Capped || d.Capped
	g.Retried += d.Retried
	g.Delayed += d.Delayed
	if d.OldestAt == 0 {
		return
	}
	at := time.UnixMilli(int64(d.OldestAt)).UTC() //nolint:gosec // before the year 10000
	if g.Oldest == nil || at.Before(*g.Oldest) {
		g.Oldest, g.OldestAgeMS = &at, max(now.Sub(at).Milliseconds(), 0)
	}
}

// operatorView gives operators access to the pubsub components. It ignores the access rules of applications.
type operatorView struct{ *components.Components }

// PubSub implements pubsub.Source. The returned component has no scopes and allows all topics.
func (v operatorView) PubSub(name string) (*pubsub.Instance, bool) {
	i, ok := v.Components.PubSub(name)
	if !ok {
		return nil, false
	}
	open := *i
	open.Scopes, open.Topics = nil, pubsub.Topics{}
	return &open, true
}

// PublishMessage implements admin.Topics.
func (s topicService) PublishMessage(ctx context.Context, r schema.TopicPublish) (schema.TopicPublished, error) {
	if _, err := s.instance(r.PubSub); err != nil {
		return schema.TopicPublished{}, err
	}
	service := apipubsub.New(apipubsub.Options{App: api.App{ID: publisher}, Source: operatorView{s.components}})
	err := service.Publish(ctx, &apipubsub.PublishRequest{PubSub: r.PubSub, Topic: r.Topic,
		Payload: apipubsub.Payload{Data: r.Data, ContentType: r.ContentType, Metadata: r.Metadata}})
	if err != nil {
		return schema.TopicPublished{}, faultOf("node.PublishMessage", err)
	}
	s.log.Info("a message was published by an operator", "pubsub", r.PubSub, "topic", r.Topic, "bytes", len(r.Data))
	return schema.TopicPublished{PubSub: r.PubSub, Topic: r.Topic, Bytes: len(r.Data),
		ContentType: cmp.Or(r.ContentType, "text/plain")}, nil
}

// faultOf converts an error of the service layer to an error of the admin API.
func faultOf(op string, err error) error {
	public, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	code := fault.Internal
	if cause, ok := fault.As(public.Cause); ok {
		code = cause.Code
	} else if public.Kind != api.Failed {
		code = fault.Invalid
	}
	return &fault.Error{Code: code, Op: op, Msg: public.Message, Hint: fault.HintOf(public.Cause)}
}

// foundTopic is a topic that exists.
type foundTopic struct {
	*topics.Admin
	of     *pubsub.Instance
	full   string             // name at the broker
	status schema.TopicStatus // without DeadTo, which needs the descriptions of all topics
}

// topic finds a topic by its name and the name of its pubsub component. It describes no other topics, because a
// description counts all messages of a topic and is therefore expensive.
func (s topicService) topic(ctx context.Context, name, topic string) (t foundTopic, err error) {
	if t.of, t.Admin, err = s.replicated(name); err != nil {
		return t, err
	}
	t.full = t.of.TopicOf(topic)
	parts, err := t.Describe(ctx, t.full)
	if err != nil {
		return t, err
	}
	list := s.statuses(t.of, parts)
	if len(list) == 0 { // the error names the topics that exist
		if list, err = s.listOf(ctx, name, topic); err != nil {
			return t, err
		}
	}
	t.status = list[0]
	return t, nil
}

// ReadMessages implements admin.Topics. It logs every request to read messages, because messages may be confidential.
func (s topicService) ReadMessages(ctx context.Context, r schema.TopicRead,
	take func(schema.TopicLine) error) error {
	t, err := s.topic(ctx, r.PubSub, r.Topic)
	if err != nil {
		return err
	}
	s.log.Info("an operator reads messages", "pubsub", r.PubSub, "topic", r.Topic, "follow", r.Follow)
	from := topics.Start{After: topics.Newest}
	switch {
	case r.Offset != nil:
		from.After = max(*r.Offset, 1) - 1
	case r.Since != nil:
		from = topics.Start{Since: *r.Since}
	case r.Oldest:
		from.After = 0
	}
	return t.Read(ctx, t.full, from, r.Follow, func(e *topics.Entry) error {
		m := messageOf(e)
		return take(schema.TopicLine{Message: &m})
	}, func() error { return take(schema.TopicLine{CaughtUp: true}) })
}

func messageOf(e *topics.Entry) schema.TopicMessage {
	m := schema.TopicMessage{RaftGroup: e.RaftGroup, Offset: e.Offset, Time: e.At.UTC(), Key: e.Key, ID: e.ID,
		ContentType: e.ContentType, Metadata: e.Metadata}
	if !e.DeliverAt.IsZero() {
		at := e.DeliverAt.UTC()
		m.DeliverAt = &at
	}
	if !e.ExpireAt.IsZero() {
		at := e.ExpireAt.UTC()
		m.ExpiresAt = &at
	}
	switch {
	case json.Valid(e.Data):
		m.Data = e.Data
	case utf8.Valid(e.Data):
		m.Text = string(e.Data)
	default:
		m.Base64 = e.Data
	}
	return m
}

// ReplayTopic implements admin.Topics.
func (s topicService) ReplayTopic(ctx context.Context, r schema.TopicReplay) (after schema.TopicStatus, err error) {
	t, err := s.topic(ctx, r.PubSub, r.Topic)
	if err == nil {
		err = hasGroup(&t.status, r.Group)
	}
	if err != nil {
		return after, err
	}
	offset, since := uint64(0), time.Time{}
	if r.Offset != nil {
		offset = max(*r.Offset, 1)
	} else if r.Since != nil {
		since = *r.Since
	}
	if err := t.Replay(ctx, t.full, r.Group, offset, since); err != nil {
		return after, err
	}
	before := t.status
	s.log.Info("a consumer group was moved back by an operator", "pubsub", r.PubSub, "topic", r.Topic, "group", r.Group,
		"offset", offset, "since", since)
	if t, err = s.topic(ctx, r.PubSub, r.Topic); err != nil {
		return before, nil //nolint:nilerr // the group was moved; only its present state is not known
	}
	return t.status, nil
}

func hasGroup(t *schema.TopicStatus, group string) error {
	var names []string
	for i := range t.Groups {
		if t.Groups[i].Group == group {
			return nil
		}
		names = append(names, t.Groups[i].Group)
	}
	return &fault.Error{Code: fault.NotFound, Op: "node.Topics", Key: group, Msg: "topic " + t.Topic + " of " +
		t.PubSub + " has no consumer group " + strconv.Quote(fault.Shorten(group, 128)),
		Hint: existing(group, names, "groups of the topic")}
}

// adding returns a function to call after each step of a long operation. The function adds the progress of the step to
// sum, and passes the sum to report.
func adding(i *pubsub.Instance, sum *schema.TopicProgress,
	report func(schema.TopicProgress) error) func(topics.Progress) error {
	return func(p topics.Progress) error {
		sum.Done += p.Done
		sum.Skipped += p.Skipped
		for name, n := range p.To {
			if sum.To == nil {
				sum.To = map[string]uint64{}
			}
			sum.To[strings.TrimPrefix(name, i.Prefix)] += n
		}
		return report(*sum)
	}
}

// DeleteTopic implements admin.Topics.
func (s topicService) DeleteTopic(ctx context.Context, r schema.TopicDelete,
	report func(schema.TopicProgress) error) error {
	t, err := s.topic(ctx, r.PubSub, r.Topic)
	if err == nil && r.Group != "" {
		err = hasGroup(&t.status, r.Group)
	}
	if err != nil {
		return err
	}
	sum := schema.TopicProgress{}
	if err := t.Remove(ctx, t.full, r.Group, r.Force, adding(t.of, &sum, report)); err != nil {
		return err
	}
	s.log.Info("a topic or a consumer group was deleted by an operator", "pubsub", r.PubSub, "topic", r.Topic, "group",
		r.Group, "records", sum.Done)
	sum.Ended = true
	return report(sum)
}

// RedriveTopic implements admin.Topics.
func (s topicService) RedriveTopic(ctx context.Context, r schema.TopicRedrive,
	report func(schema.TopicProgress) error) error {
	t, err := s.topic(ctx, r.PubSub, r.Topic)
	if err != nil {
		return err
	}
	to := ""
	switch {
	case r.To != "":
		target, err := s.topic(ctx, r.PubSub, r.To)
		if err != nil { // a mistyped name must not become a topic
			return err
		}
		to = target.full
	case len(t.status.DeadOf) == 0:
		return &fault.Error{Code: fault.Invalid, Op: "node.RedriveTopic", Key: r.Topic,
			Msg:  "topic " + r.Topic + " of " + r.PubSub + " has no dead letters of other topics",
			Hint: "topics list shows where dead letters are; --to names the topic to which the messages go"}
	}
	sum := schema.TopicProgress{}
	if err := t.Redrive(ctx, t.full, to, adding(t.of, &sum, report)); err != nil {
		return err
	}
	s.log.Info("dead letters were moved back by an operator", "pubsub", r.PubSub, "topic", r.Topic, "messages",
		sum.Done, "skipped", sum.Skipped)
	sum.Ended = true
	return report(sum)
}
