package pubsub

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

func TestRule_Matches(t *testing.T) {
	event := map[string]any{"type": "order", "data": map[string]any{"n": 5.0, "list": make([]any, 5000)}}
	for match, want := range map[string]string{
		"":                        "yes",
		`event.type == "order"`:   "yes",
		`event.type == "other"`:   "no",
		`event.data.n > 3`:        "yes",
		`has(event.data.missing)`: "no",
		`event.data.missing == 1`: "error",
		`unknown == 1`:            "error",
		`event.data.n`:            "error", // no boolean
		`event.data.list.all(x, event.data.list.all(y, x == y))`: "error", // too many steps
	} {
		r, err := compile(match, "/")
		if err != nil {
			t.Errorf("%s: %v", match, err)
			continue
		}
		yes, err := r.matches(t.Context(), event)
		got := map[bool]string{true: "yes", false: "no"}[yes]
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", match, got, err, want)
		}
	}
}

func TestCompile_Refuses(t *testing.T) {
	for name, match := range map[string]string{"syntax": `event.type ==`, "result": `"text"`,
		"function": `nosuch(event)`,
		"length":   "true || " + strings.Repeat("true || ", 1000) + "true",
		"depth":    strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)} {
		if _, err := compile(match, "/"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestEffective_Precedence(t *testing.T) {
	d := func(topic, path string) Definition { return Definition{PubSub: "m", Topic: topic, Default: path} }
	got := effective([]Definition{d("a", "1"), d("a", "2"), d("b", "3")},
		[]Definition{d("b", "4"), d("c", "5"), d("c", "6")})
	var paths []string
	for _, one := range got {
		paths = append(paths, one.Topic+one.Default)
	}
	if strings.Join(paths, " ") != "a1 b4 c6" {
		t.Errorf("effective %v", paths)
	}
}

func TestParseDefinitions(t *testing.T) {
	list, dropped, err := ParseDefinitions([]byte(`[{"pubsubname":"m","topic":"a","route":"/a","unknown":1},
		{"pubsubname":"m","topic":"b","routes":{"rules":[{"match":"true","path":"/b"}],"default":"/c"}},
		{"pubsubname":"m","topic":"none"}]`))
	if err != nil || len(list) != 2 || list[0].Default != "/a" || list[1].Default != "/c" ||
		list[1].Rules[0].Path != "/b" || len(dropped) != 1 {
		t.Errorf("%+v, %q, %v", list, dropped, err)
	}
	for _, body := range []string{"{}", "[1]", `"x"`, "[" + strings.Repeat("{},", 2000) + "{}]"} {
		if _, _, err := ParseDefinitions([]byte(body)); err == nil {
			t.Errorf("%.20s was accepted", body)
		}
	}
	if list, _, err := ParseDefinitions(nil); err != nil || list != nil {
		t.Error("an empty answer is none")
	}
}

func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"id":"1","data":{"a":1},"expiration":"x","traceparent":1}`))
	f.Add([]byte(`{"data_base64":"AA==","datacontenttype":"application/json"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := &Event{fields: attributes{}, Data: data}
		if json.Unmarshal(data, &e.fields) != nil || e.fields == nil {
			return
		}
		e.ID = e.fields.text("id")
		if e.Proto() == nil {
			t.Error("no message")
		}
		e.Trace()
	})
}

func FuzzParseDefinitions(f *testing.F) {
	f.Add([]byte(`[{"pubsubname":"m","topic":"a","routes":{"rules":[{"match":"event.x","path":"/"}]}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, _, err := ParseDefinitions(data)
		for i := range list {
			if _, wrong := list[i].Check(); err != nil && wrong == nil {
				t.Error("both an error and a list")
			}
		}
	})
}

// A topic cannot be its own dead-letter topic, because a message that always fails would be delivered forever.
func TestDefinition_DeadLetterTopicIsAnotherTopic(t *testing.T) {
	d := Definition{PubSub: "messages", Topic: "orders", Default: "/orders", DeadLetter: "orders"}
	if _, err := d.Check(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "is the topic itself") {
		t.Error(err)
	}
	d.DeadLetter = "failed-orders"
	if _, err := d.Check(); err != nil {
		t.Error(err)
	}
}
