package pubsub

import (
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Topics are the rules that decide which application may use which topics of a component. The zero value allows
// everything.
type Topics struct {
	Allowed    []string            // topics that may be used; empty = all
	Protected  []string            // topics that only applications with a list may use
	Publishing map[string][]string // topics to which an application may publish, for applications with a list
	Subscribed map[string][]string // topics to which an application may subscribe, for applications with a list
}

// ParseTopics parses a list of topics, separated by commas. Spaces are ignored.
func ParseTopics(text string) (out []string) {
	for topic := range strings.SplitSeq(strings.ReplaceAll(text, " ", ""), ",") {
		if topic != "" {
			out = append(out, topic)
		}
	}
	return out
}

// ParseTopicScopes parses a list of the topics that each application may use, such as "app1=topic1,topic2;app2=". In
// this example, app2 may use no topic. Spaces are ignored.
func ParseTopicScopes(text string) (map[string][]string, error) {
	out := map[string][]string{}
	for scope := range strings.SplitSeq(strings.ReplaceAll(text, " ", ""), ";") {
		if scope == "" {
			continue
		}
		app, topics, ok := strings.Cut(scope, "=")
		if !ok || app == "" {
			return nil, errors.New("is not a list such as app1=topic1,topic2;app2=topic3")
		}
		out[app] = append(out[app], ParseTopics(topics)...)
	}
	return out, nil
}

// MayPublish reports whether an application may publish to a topic.
func (t *Topics) MayPublish(app, topic string) bool { return t.may(t.Publishing, app, topic) }

// MaySubscribe reports whether an application may subscribe to a topic.
func (t *Topics) MaySubscribe(app, topic string) bool { return t.may(t.Subscribed, app, topic) }

func (t *Topics) may(scopes map[string][]string, app, topic string) bool {
	if len(t.Allowed) > 0 && !slices.Contains(t.Allowed, topic) {
		return false
	}
	if list, scoped := scopes[app]; scoped {
		return slices.Contains(list, topic)
	}
	return !slices.Contains(t.Protected, topic)
}

// CheckGroup returns an error if text is not a valid name of a consumer group. The error text is the end of a sentence,
// for example "is longer than 512 bytes", so that the caller can put the name in front.
func CheckGroup(text string) error {
	switch {
	case len(text) > MaxGroup:
		return errors.New("is longer than 512 bytes")
	case strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text):
		return errors.New("contains characters that are not allowed")
	}
	return nil
}

// CheckTopic returns an error if text is not a valid name of a topic. The error text is the end of a sentence, for
// example "is empty", so that the caller can put the name in front.
func CheckTopic(text string) error {
	switch {
	case text == "":
		return errors.New("is empty")
	case len(text) > MaxTopic:
		return errors.New("is longer than 1,024 bytes")
	case strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text):
		return errors.New("contains characters that are not allowed")
	}
	return nil
}
