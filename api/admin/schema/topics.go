package schema

import (
	"encoding/json"
	"time"
)

// TopicStatus is one topic of a pubsub.raft component.
type TopicStatus struct {
	PubSub      string             `json:"pubsub"` // component
	Topic       string             `json:"topic"`
	Messages    uint64             `json:"messages"`
	Bytes       uint64             `json:"bytes"`               // size with keys and records
	MaxBytes    int64              `json:"maxBytes"`            // above this size, the topic refuses messages
	RetentionMS int64              `json:"retentionMs"`         // minimum storage time of acknowledged messages
	Full        bool               `json:"full,omitempty"`      // the topic refuses messages
	DeadOf      []string           `json:"deadOf,omitempty"`    // topics whose dead letters have come to this topic
	DeadTo      []string           `json:"deadTo,omitempty"`    // topics that have received its dead letters
	Groups      []TopicGroupStatus `json:"groups"`              // by name
	Parts       []TopicPart        `json:"parts"`               // one for each Raft group with messages of the topic
	Estimated   bool               `json:"estimated,omitempty"` // the counts include messages whose TTL has ended
}

// TopicPart is the part of a topic in one Raft group.
type TopicPart struct {
	RaftGroup uint32 `json:"raftGroup"`
	Messages  uint64 `json:"messages"`
	Newest    uint64 `json:"newestOffset"` // 0 = there is no message
}

// TopicGroupStatus is a consumer group of a topic.
type TopicGroupStatus struct {
	Group       string     `json:"group"`
	Subscribers uint64     `json:"subscribers"`                    // number of subscribers that receive messages now
	Lag         uint64     `json:"lag"`                            // number of messages that are not acknowledged
	Capped      bool       `json:"capped,omitempty"`               // the real number is larger than Lag
	Retried     uint64     `json:"retried"`                        // of Lag: failed, and are delivered again
	Delayed     uint64     `json:"delayed"`                        // of Lag: not due for delivery yet
	Oldest      *time.Time `json:"oldestUnacknowledged,omitempty"` // since when the oldest that is not delayed waits
	OldestAgeMS int64      `json:"oldestUnacknowledgedAgeMs,omitempty"`
}

// TopicPublish publishes one message.
type TopicPublish struct {
	PubSub      string            `json:"pubsub"`
	Topic       string            `json:"topic"`
	Data        []byte            `json:"data,omitempty"`
	ContentType string            `json:"contentType,omitempty"` // empty = text/plain
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// TopicPublished is the answer to TopicPublish.
type TopicPublished struct {
	PubSub string `json:"pubsub"`
	Topic  string `json:"topic"`
	Bytes  int    `json:"bytes"` // size of the data
	// ContentType is the content type of the data.
	ContentType string `json:"contentType"`
}

// TopicRead is a request to read messages of a topic. At most one of Offset, Since and Oldest is set, and determines
// the first message. If none is set, only messages that are published later are read.
type TopicRead struct {
	PubSub string
	Topic  string
	Offset *uint64    // the first offset, in each Raft group
	Since  *time.Time // messages that were published since
	Oldest bool       // the oldest message; if none of the three is set, the first message that is published later
	Follow bool       // wait for messages that are published later
}

// TopicLine is one line of an answer that is a stream. Each line has exactly one field.
type TopicLine struct {
	Message  *TopicMessage   `json:"message,omitempty"`
	CaughtUp bool            `json:"caughtUp,omitempty"` // all existing messages were sent
	Progress *TopicProgress  `json:"progress,omitempty"`
	Error    json.RawMessage `json:"error,omitempty"` // encoded like an error body; only in the last line
}

// TopicMessage is one message of a topic.
type TopicMessage struct {
	RaftGroup   uint32            `json:"raftGroup"`
	Offset      uint64            `json:"offset"`
	Time        time.Time         `json:"time"` // when the message was published, in cluster time
	Key         string            `json:"key,omitempty"`
	ID          string            `json:"id,omitempty"`
	ContentType string            `json:"contentType,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	DeliverAt   *time.Time        `json:"deliverAt,omitempty"`
	ExpiresAt   *time.Time        `json:"expiresAt,omitempty"`
	Data        json.RawMessage   `json:"data,omitempty"`       // data that is JSON
	Text        string            `json:"text,omitempty"`       // other data, if it is UTF-8
	Base64      []byte            `json:"dataBase64,omitempty"` // any other data
}

// TopicReplay is a request that makes a consumer group receive messages again. Offset selects the messages from this
// offset on, in each Raft group. Since selects the messages that were published since this time.
type TopicReplay struct {
	PubSub string     `json:"pubsub"`
	Topic  string     `json:"topic"`
	Group  string     `json:"group"`
	Offset *uint64    `json:"offset,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
}

// TopicDelete deletes a topic, or a consumer group of it.
type TopicDelete struct {
	PubSub string `json:"pubsub"`
	Topic  string `json:"topic"`
	Group  string `json:"group,omitempty"` // empty = the topic with all its groups
	Force  bool   `json:"force,omitempty"` // delete also if there are subscribers
}

// TopicRedrive moves dead letters back to the topics that they come from, or to one topic.
type TopicRedrive struct {
	PubSub string `json:"pubsub"`
	Topic  string `json:"topic"`        // topic with the dead letters
	To     string `json:"to,omitempty"` // target; empty = the topic that each dead letter came from
}

// TopicProgress is the progress of an operation on a topic.
type TopicProgress struct {
	Done    uint64            `json:"done"`            // messages that were moved, or records that were deleted
	Skipped uint64            `json:"skipped"`         // messages that stay, because their source is not known
	To      map[string]uint64 `json:"to,omitempty"`    // how many messages were moved to which topic
	Ended   bool              `json:"ended,omitempty"` // the operation has ended
}
