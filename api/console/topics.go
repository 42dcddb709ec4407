package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/api/admin/schema"
)

// Topics shows topics. Implementations are safe for concurrent use.
type Topics interface {
	// ListTopics lists the topics of a component, or of all components if pubsub is empty. If topic is not empty, it
	// lists only that topic, and returns an error if the topic does not exist.
	ListTopics(ctx context.Context, pubsub, topic string) ([]schema.TopicStatus, error)
	// ReadMessages calls take for the messages of a topic, and returns the error of take.
	ReadMessages(ctx context.Context, r schema.TopicRead, take func(schema.TopicLine) error) error
}

const (
	messagesOfPage = 50
	maxMessage     = 4 << 10 // bytes of the data of a message that are shown
)

var errEnough = errors.New("the page has enough messages")

// topicsBody lists topics with their groups. It also shows the topic that the request names.
func topicsBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	q := r.URL.Query()
	pubsub, topic, prefix := q.Get("pubsub"), q.Get("topic"), q.Get("prefix")
	list, err := r.console.config.Topics.ListTopics(ctx, pubsub, "")
	body := html("")
	if topic != "" {
		body = r.topic(ctx, pubsub, topic, list, err)
	}
	body += card("choose", "Choose topics", h(`<form class="inline" method="get" action="/topics">%%<button>Show`+
		`</button></form>`, label("Component", "pubsub", pubsub, ""), label("Prefix of the name", "prefix", prefix,
		"")))
	if err != nil {
		return body + card("topics", "Topics", failure(textOf(err))), nil
	}
	list = slices.DeleteFunc(list, func(t schema.TopicStatus) bool { return !strings.HasPrefix(t.Topic, prefix) })
	var rows []html
	dead, all := 0, 0
	for i := range list {
		t := &list[i]
		all += max(len(t.Groups), 1)
		if len(t.DeadOf) > 0 && t.Messages > 0 {
			dead++
		}
		for j := 0; j < max(len(t.Groups), 1) && len(rows) < maxRows; j++ {
			group := [4]html{text(""), text(""), text(""), text("")}
			if j < len(t.Groups) {
				g := &t.Groups[j]
				group = [4]html{code(g.Group), subscribers(g), esc(lag(g)), text(oldest(g))}
			}
			rows = append(rows, row(topicLink(t.PubSub, t.Topic), text(t.PubSub), num(t.Messages), sizeOfTopic(t),
				topicLinks(t.PubSub, t.DeadOf), group[0], group[1], group[2], group[3]))
		}
	}
	head := plural(len(list), "topic") + ", " + strconv.Itoa(dead) + " with dead letters." + cut(all)
	return body + card("topics", "Topics", h("<p>%</p>", esc(head))+grid("Topics", "Topic|Component|Messages|Size|"+
		"Dead letters of|Group|Subscribers|Lag|Oldest waits for", rows)+dim("The lag of a group is what it has not "+
		"acknowledged. A delayed message does not wait before its time. Components of type pubsub.raft have topics "+
		"that can be shown.")), nil
}

// topicQuery returns the query of the page of a topic.
func topicQuery(pubsub, topic string) url.Values {
	return url.Values{"pubsub": {pubsub}, "topic": {topic}}
}

func topicLink(pubsub, topic string) html {
	return h(`<a href="%">%</a>`, esc("/topics?"+topicQuery(pubsub, topic).Encode()), code(topic))
}

func topicLinks(pubsub string, names []string) html {
	if len(names) == 0 {
		return text("")
	}
	var list []html
	for i, name := range names {
		list = append(list, when(i > 0, ", "), topicLink(pubsub, name))
	}
	return joined(list)
}

func sizeOfTopic(t *schema.TopicStatus) html {
	return esc(size(float64(t.Bytes))) + when(t.Full, " "+badge(levelFail, "full"))
}

// subscribers renders the number of subscribers of a group. It warns if the group has messages and no subscriber.
func subscribers(g *schema.TopicGroupStatus) html {
	if g.Subscribers == 0 && g.Lag > 0 {
		return badge(levelWarn, "none")
	}
	return num(g.Subscribers)
}

// lag returns the lag of a group. A + at its end means that the lag may be larger.
func lag(g *schema.TopicGroupStatus) string {
	n := strconv.FormatUint(g.Lag, 10)
	if g.Capped {
		n += "+"
	}
	return n
}

// oldest returns how long the oldest message of a group has waited, or "" if none waits.
func oldest(g *schema.TopicGroupStatus) string {
	if g.Oldest == nil {
		return ""
	}
	return age(time.Duration(g.OldestAgeMS) * time.Millisecond)
}

// topic renders one topic with its groups. If the request has the parameter messages, it also renders the messages of
// the topic. list has all topics of the component, and err is the error of reading list.
func (r *request) topic(ctx context.Context, pubsub, topic string, list []schema.TopicStatus, err error) html {
	title := "Topic " + topic
	n := slices.IndexFunc(list, func(t schema.TopicStatus) bool { return t.PubSub == pubsub && t.Topic == topic })
	if err == nil && n < 0 {
		_, err = r.console.config.Topics.ListTopics(ctx, pubsub, topic) // the error names a similar topic
	}
	if err != nil {
		return card("topic", title, failure(textOf(err)))
	}
	if n < 0 {
		return card("topic", title, failure("The component "+pubsub+" has no topic "+topic+"."))
	}
	t := &list[n]
	var rows, newest []html
	for i := range t.Groups {
		g := &t.Groups[i]
		if i < maxRows {
			rows = append(rows, row(code(g.Group), subscribers(g), esc(lag(g)), num(g.Retried), num(g.Delayed),
				text(oldest(g))))
		}
	}
	for i, p := range t.Parts {
		newest = append(newest, when(i > 0, ", "), num(p.Newest),
			when(len(t.Parts) > 1, " in Raft group "+link(strconv.Itoa(int(p.RaftGroup)), "groups",
				strconv.Itoa(int(p.RaftGroup)))))
	}
	about := pairs(pair("Component", t.PubSub), pairOf("Messages", num(t.Messages)),
		pairOf("Size", sizeOfTopic(t)+esc(" of at most "+size(float64(t.MaxBytes)))),
		pair("Retention", age(time.Duration(t.RetentionMS)*time.Millisecond)), pairOf("Newest offset", joined(newest)),
		pairOf("Dead letters of", topicLinks(t.PubSub, t.DeadOf)),
		pairOf("Dead letters in", topicLinks(t.PubSub, t.DeadTo)))
	return card("topic", title, about+h("<h3>Consumer groups</h3>%%", grid("Consumer groups", "Group|Subscribers|"+
		"Lag|Retried|Delayed|Oldest waits for", rows), esc(cut(len(t.Groups))))+r.messages(ctx, t))
}

// messages renders the messages of a topic if the request has the parameter messages. Otherwise it renders a button
// that shows the messages. It writes an audit log line each time it reads messages.
func (r *request) messages(ctx context.Context, t *schema.TopicStatus) html {
	asked := r.URL.Query()
	q := topicQuery(t.PubSub, t.Topic)
	q.Set("messages", "true")
	if asked.Get("messages") != "true" {
		return h(`<p><a class="button" href="%">Show messages</a></p>`, esc("/topics?"+q.Encode())) +
			dim("The log of the node will say that they were read. Consumer groups are not changed.")
	}
	now, within := r.console.config.Now(), asked.Get("within")
	read := schema.TopicRead{PubSub: t.PubSub, Topic: t.Topic}
	if offset, err := strconv.ParseUint(asked.Get("offset"), 10, 64); err == nil {
		read.Offset = &offset
	} else if d, err := time.ParseDuration(within); err == nil && d > 0 {
		since := now.Add(-d)
		read.Since = &since
	} else {
		read.Oldest = true
	}
	shown, more, err := r.read(ctx, read)
	r.audit(ctx, "read messages", "pubsub", t.PubSub, "topic", t.Topic, "error", textOrEmpty(err))
	body := h(`<h3>Messages</h3><form class="inline" method="get" action="/topics">%%%%<button>Show</button></form>`,
		hidden("pubsub", t.PubSub), hidden("topic", t.Topic), hidden("messages", "true"),
		choose("Published", "within", within, []string{"=at any time", "1h=in the last hour", "24h=in the last day"}))
	if err != nil {
		return body + failure(textOf(err))
	}
	slices.SortStableFunc(shown, func(a, b schema.TopicMessage) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Offset, b.Offset))
	})
	var rows []html
	for i := range shown {
		m := &shown[i]
		rows = append(rows, row(esc(stamp(m.Time, now)), num(m.Offset), text(m.Key), text(m.ContentType),
			dataOf(m)+metadataOf(m)))
	}
	body += grid("Messages", "Published (UTC)|Offset|Key|Content type|Data", rows)
	switch {
	case more && len(t.Parts) == 1:
		q.Set("offset", strconv.FormatUint(shown[len(shown)-1].Offset+1, 10))
		body += h(`<a class="button" href="%">Next messages</a>`, esc("/topics?"+q.Encode()))
	case more:
		body += dim("There are more messages: quorate topics tail shows all, with --from oldest --once.")
	}
	return body
}

// read returns messages of a topic, at most messagesOfPage. The data of each message is cut to the part that the page
// shows. hasMore is true if there are further messages.
func (r *request) read(ctx context.Context, q schema.TopicRead) (list []schema.TopicMessage, hasMore bool, err error) {
	err = r.console.config.Topics.ReadMessages(ctx, q, func(l schema.TopicLine) error {
		if l.Message == nil {
			return nil
		}
		if len(list) == messagesOfPage {
			return errEnough
		}
		m := *l.Message
		m.Text, m.Data, m.Base64 = shownData(l.Message), nil, nil
		list = append(list, m)
		return nil
	})
	if errors.Is(err, errEnough) {
		return list, true, nil
	}
	return list, false, err
}

// shownData returns the data of a message for people. It indents small JSON, and shows bytes that are not text in
// hexadecimal.
func shownData(m *schema.TopicMessage) string {
	v := []byte(m.Text)
	switch {
	case m.Data != nil:
		v = m.Data
	case m.Base64 != nil:
		return cutData(hex.Dump(m.Base64[:min(len(m.Base64), maxMessage/8)]), len(m.Base64), maxMessage/8)
	}
	if m.Data != nil && len(v) <= maxMessage {
		if text, ok := indented(v); ok {
			return text
		}
	}
	whole := len(v)
	if v = v[:min(whole, maxMessage)]; whole > maxMessage {
		for len(v) > maxMessage-utf8.UTFMax && !utf8.Valid(v) { // the cut is inside a character
			v = v[:len(v)-1]
		}
	}
	return cutData(string(v), whole, maxMessage)
}

// cutData returns first, which is the beginning of some data. whole is the size of the data in bytes. If whole exceeds
// limit, cutData appends a note with this size.
func cutData(first string, whole, limit int) string {
	if whole <= limit {
		return first
	}
	return first + "\n… (" + size(float64(whole)) + ", too much to show)"
}

func dataOf(m *schema.TopicMessage) html {
	return h(`<pre class="value" tabindex="0"><code>%</code></pre>`, esc(m.Text))
}

func metadataOf(m *schema.TopicMessage) html {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		list = append(list, name+"="+m.Metadata[name])
	}
	return when(len(list) > 0, dim("Metadata: "+strings.Join(list, ", ")))
}
