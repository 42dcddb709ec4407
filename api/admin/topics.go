package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API about topics.
const (
	TopicsPath       = "/v1/topics"
	TopicPublishPath = "/v1/topics/publish"
	TopicReplayPath  = "/v1/topics/replay"
	// TopicDeletePath and TopicRedrivePath answer with one schema.TopicLine per line.
	TopicDeletePath  = "/v1/topics/delete"
	TopicRedrivePath = "/v1/topics/redrive"

	topicMessagesPath = "/v1/topics/messages"
)

// maxPublished is the maximum size in bytes of a request body that publishes a message. The body contains the data of
// the message in base64, which makes the data one third larger.
const maxPublished = 64 << 20

// TopicPath returns the path at which the admin API lists a topic. If topic is empty, all topics of the component are
// listed. If pubsub is empty too, the topics of all components are listed.
func TopicPath(pubsub, topic string) string {
	q := url.Values{}
	if pubsub != "" {
		q.Set("pubsub", pubsub)
	}
	if topic != "" {
		q.Set("topic", topic)
	}
	return TopicsPath + "?" + q.Encode()
}

// Topics is the part of Node that shows and changes topics.
type Topics interface {
	// ListTopics lists the topics of all components of type pubsub.raft, or those of one component, or one topic. It
	// returns fault.NotFound if the component or the topic does not exist.
	ListTopics(ctx context.Context, pubsub, topic string) ([]schema.TopicStatus, error)
	// PublishMessage publishes a message to a component of any type.
	PublishMessage(ctx context.Context, r schema.TopicPublish) (schema.TopicPublished, error)
	// ReadMessages passes the messages of a topic to take. When it has passed all messages that exist, it reports this
	// once, with CaughtUp. With r.Follow, it ends only when ctx ends or take returns an error.
	ReadMessages(ctx context.Context, r schema.TopicRead, take func(schema.TopicLine) error) error
	// ReplayTopic makes a consumer group receive messages again. It returns the new status of the topic.
	ReplayTopic(ctx context.Context, r schema.TopicReplay) (schema.TopicStatus, error)
	// DeleteTopic deletes a topic or a consumer group, step by step. The last progress has the totals, and its Ended
	// is true. DeleteTopic returns fault.Conflict if there are subscribers, unless the request forces the deletion.
	DeleteTopic(ctx context.Context, r schema.TopicDelete, report func(schema.TopicProgress) error) error
	// RedriveTopic moves dead letters back, step by step. It reports its progress as DeleteTopic does.
	RedriveTopic(ctx context.Context, r schema.TopicRedrive, report func(schema.TopicProgress) error) error
}

// TopicMessagesPath returns the path that streams messages of a topic, one schema.TopicLine per line.
func TopicMessagesPath(r *schema.TopicRead) string {
	q := url.Values{"pubsub": {r.PubSub}, "topic": {r.Topic}}
	switch {
	case r.Offset != nil:
		q.Set("offset", strconv.FormatUint(*r.Offset, 10))
	case r.Since != nil:
		q.Set("since", r.Since.UTC().Format(time.RFC3339Nano))
	case r.Oldest:
		q.Set("oldest", "true")
	}
	if r.Follow {
		q.Set("follow", "true")
	}
	return topicMessagesPath + "?" + q.Encode()
}

// topicRead reads the query of a request for messages.
func topicRead(q url.Values) (r schema.TopicRead, err error) {
	r = schema.TopicRead{PubSub: q.Get("pubsub"), Topic: q.Get("topic"), Oldest: q.Get("oldest") == "true",
		Follow: q.Get("follow") == "true"}
	if r.PubSub == "" || r.Topic == "" {
		return r, errNoTopic("admin.readMessages")
	}
	if text := q.Get("offset"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return r, fault.New(fault.Invalid, "admin.readMessages", "offset is not a number")
		}
		r.Offset = &n
	}
	if text := q.Get("since"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return r, fault.New(fault.Invalid, "admin.readMessages", "since is not a time")
		}
		r.Since = &at
	}
	return r, nil
}

// topicLines answers a request with a stream of JSON lines, which run sends.
func (h *handler) topicLines(w http.ResponseWriter, run func(send func(schema.TopicLine) error) error) {
	stream(h, w, func(e json.RawMessage) schema.TopicLine { return schema.TopicLine{Error: e} }, run)
}

func (h *handler) readMessages(w http.ResponseWriter, r *http.Request) {
	request, err := topicRead(r.URL.Query())
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	h.topicLines(w, func(send func(schema.TopicLine) error) error {
		return h.node.ReadMessages(r.Context(), request, send)
	})
}

func (h *handler) replayTopic(w http.ResponseWriter, r *http.Request) {
	const op = "admin.replayTopic"
	var body schema.TopicReplay
	err := decode(w, r, op, &body)
	switch {
	case err != nil:
	case body.PubSub == "" || body.Topic == "":
		err = errNoTopic(op)
	case body.Group == "" || (body.Offset == nil) == (body.Since == nil):
		err = &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "no consumer group, or not one place to begin at, is named",
			Hint: "give a group, and either an offset or a time; topics show lists the groups"}
	}
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	after, err := h.node.ReplayTopic(r.Context(), body)
	h.answer(w, after, err)
}

func (h *handler) deleteTopic(w http.ResponseWriter, r *http.Request) {
	const op = "admin.deleteTopic"
	var body schema.TopicDelete
	err := decode(w, r, op, &body)
	if err == nil && (body.PubSub == "" || body.Topic == "") {
		err = errNoTopic(op)
	}
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	h.topicLines(w, func(send func(schema.TopicLine) error) error {
		return h.node.DeleteTopic(r.Context(), body, func(p schema.TopicProgress) error {
			return send(schema.TopicLine{Progress: &p})
		})
	})
}

func (h *handler) redriveTopic(w http.ResponseWriter, r *http.Request) {
	const op = "admin.redriveTopic"
	var body schema.TopicRedrive
	err := decode(w, r, op, &body)
	if err == nil && (body.PubSub == "" || body.Topic == "") {
		err = errNoTopic(op)
	}
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	h.topicLines(w, func(send func(schema.TopicLine) error) error {
		return h.node.RedriveTopic(r.Context(), body, func(p schema.TopicProgress) error {
			return send(schema.TopicLine{Progress: &p})
		})
	})
}

func (h *handler) topics(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("topic") != "" && q.Get("pubsub") == "" {
		h.answer(w, nil, errNoTopic("admin.topics"))
		return
	}
	list, err := h.node.ListTopics(r.Context(), q.Get("pubsub"), q.Get("topic"))
	if list == nil {
		list = []schema.TopicStatus{}
	}
	h.answer(w, list, err)
}

func errNoTopic(op string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Msg: "no pubsub component or no topic is named",
		Hint: "give both; topics list shows them"}
}

func (h *handler) publishMessage(w http.ResponseWriter, r *http.Request) {
	const op = "admin.publishMessage"
	var body schema.TopicPublish
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPublished))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the request cannot be read",
			Hint: "send at most 45 MiB at once, with the quorate command of the version that the node runs", Err: err})
		return
	}
	if body.PubSub == "" || body.Topic == "" {
		h.answer(w, nil, errNoTopic(op))
		return
	}
	done, err := h.node.PublishMessage(r.Context(), body)
	h.answer(w, done, err)
}
