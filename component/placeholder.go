package component

import (
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Placeholders has the values that replace {uuid}, {podName}, {namespace} and {appID} in plain metadata values. In a
// value from a reference, these texts stay unchanged.
type Placeholders struct {
	UUID      func() string // returns a new UUID for each {uuid}; required
	PodName   string        // empty = {podName} is an error
	Namespace string        // {namespace} becomes <namespace>.<app id>, or only the app id if Namespace is empty
	AppID     string        // empty = {appID} and {namespace} are errors
}

const (
	holdUUID      = "{uuid}"
	holdPodName   = "{podName}"
	holdNamespace = "{namespace}"
	holdAppID     = "{appID}"
)

func hasPlaceholder(value string) bool {
	return strings.Contains(value, holdUUID) || strings.Contains(value, holdPodName) ||
		strings.Contains(value, holdNamespace) || strings.Contains(value, holdAppID)
}

// Replace returns the value with every placeholder replaced. The replacements themselves are not searched for
// placeholders. Replace returns fault.Invalid if a placeholder has no value.
func (p Placeholders) Replace(value string) (string, error) {
	if !hasPlaceholder(value) {
		return value, nil
	}
	var b strings.Builder
	for value != "" {
		start := strings.IndexByte(value, '{')
		if start < 0 {
			break
		}
		b.WriteString(value[:start])
		value = value[start:]
		text, used, err := p.first(value)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		value = value[used:]
	}
	b.WriteString(value)
	return b.String(), nil
}

// first returns the replacement for the start of value, which must begin with a brace. The replacement is the value of
// a placeholder, or the brace itself if no placeholder begins there. used is the number of replaced bytes.
func (p Placeholders) first(value string) (text string, used int, err error) {
	switch {
	case strings.HasPrefix(value, holdUUID):
		return p.UUID(), len(holdUUID), nil
	case strings.HasPrefix(value, holdPodName):
		text, err = given(holdPodName, p.PodName, "set POD_NAME")
		return text, len(holdPodName), err
	case strings.HasPrefix(value, holdAppID):
		text, err = given(holdAppID, p.AppID, "it needs a node that serves exactly one application")
		return text, len(holdAppID), err
	case strings.HasPrefix(value, holdNamespace):
		text, err = given(holdNamespace, p.AppID, "it needs a node that serves exactly one application")
		if p.Namespace != "" {
			text = p.Namespace + "." + text
		}
		return text, len(holdNamespace), err
	}
	return value[:1], 1, nil
}

func given(name, value, hint string) (string, error) {
	if value == "" {
		return "", &fault.Error{Code: fault.Invalid, Op: "component.Replace", Msg: "the placeholder " + name +
			" stands for nothing here", Hint: hint}
	}
	return value, nil
}
