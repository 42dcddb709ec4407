package jobproto_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/jobproto"
)

// The data of a job over HTTP arrive as they were given. Only data may be null: some clients send null for each field
// that is not set.
func TestParse_DataArriveUnchanged(t *testing.T) {
	for given, want := range map[string]string{
		`"data":null`: "null", `"data":0`: "0", `"data":"x"`: `"x"`, `"data":{"a":[null]}`: `{"a":[null]}`,
		`"ttl":null`: "",
	} {
		job, _, err := jobproto.Parse("j", []byte(`{"dueTime":"1s","repeats":null,"schedule":null,`+given+`}`))
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		if got := string(jobproto.Body(job.GetData())); got != want || job.Schedule != nil || job.Repeats != nil {
			t.Errorf("%s arrived as %q of %v", given, got, job)
		}
		if text, err := jobproto.JSON(job); err != nil {
			t.Errorf("%s: %s, %v", given, text, err)
		}
	}
}

// As in Dapr, an HTTP application gets the text or the bytes of the message in a job that was scheduled over gRPC.
func TestBody_IsWhatTheMessageHolds(t *testing.T) {
	for want, m := range map[string]proto.Message{
		"hello":    wrapperspb.String("hello"),
		"\x00\xff": wrapperspb.Bytes([]byte("\x00\xff")),
		"":         wrapperspb.String(""),
		`"true"`:   structpb.NewStringValue("true"),
		"\b{":      wrapperspb.Int64(123),
	} {
		data, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(jobproto.Body(data)); got != want {
			t.Errorf("%v arrived as %q, want %q", m, got, want)
		}
	}
	expr := &anypb.Any{TypeUrl: "type.googleapis.com/google.type.Expr", Value: []byte(`{"a": 1}`)}
	if got := string(jobproto.Body(expr)); got != `{"a": 1}` {
		t.Errorf("an unknown type arrived as %q", got)
	}
}

// Data that are too large are refused before they are decoded.
func TestParse_DataTooLarge(t *testing.T) {
	data := "[0" + strings.Repeat(",0", api.MaxJobData/2) + "]"
	_, _, err := jobproto.Parse("j", []byte(`{"dueTime":"1s","data":`+data+`}`))
	if err == nil || !strings.Contains(api.AsError(err).Message, "the limit is 1048576") {
		t.Error(err)
	}
}

// All names that Dapr reads are accepted, in both spellings.
func TestParse_FieldsOfDapr(t *testing.T) {
	for _, body := range []string{
		`{"schedule":"@daily","dueTime":"1s","repeats":2,"ttl":"1h","data":{"any":1},"overwrite":true,
			"failurePolicy":{"constant":{"interval":"1m0s","maxRetries":3}}}`,
		`{"due_time":"1s","failure_policy":{"constant":{"interval":"60s","max_retries":"3"}},"repeats":"1"}`,
		`{"dueTime":"1s","failurePolicy":{"drop":{}}}`,
		`{"dueTime":"1s","failurePolicy":{"constant":{}},"name":null,"later":7}`,
	} {
		if job, _, err := jobproto.Parse("j", []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		} else if p := jobproto.PolicyOf(job.GetFailurePolicy()); p != nil && p.Retry && p.MaxRetries != nil &&
			p.Interval != time.Minute {
			t.Errorf("%s has the interval %s", body, p.Interval)
		}
	}
}

// An interval keeps its exact value. As a floating-point number of seconds, it could have more digits than the JSON
// form of protobuf permits.
func TestParse_IntervalIsExact(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`{"constant":{"interval":"1.118s"}}`:        1118 * time.Millisecond,
		`{"constant":{"interval":"1m"},"note":1}`:   time.Minute,
		`{"constant":{"interval":"2562047h47m"}}`:   2562047*time.Hour + 47*time.Minute,
		`{"constant":{"interval":"1ns","note":{}}}`: 1,
	} {
		job, _, err := jobproto.Parse("j", []byte(`{"dueTime":"1s","failurePolicy":`+text+`}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := jobproto.PolicyOf(job.GetFailurePolicy()).Interval; got != want {
			t.Errorf("%s has the interval %s", text, got)
		}
	}
}

func TestParse_ErrorsNameTheField(t *testing.T) {
	for body, want := range map[string]string{
		`{"failurePolicy":{"constant":{"interval":"soon"}}}`: "failurePolicy.constant.interval: must be a duration " +
			"such as 5s",
		`{"failurePolicy":{"constant":{"interval":5}}}`: "failurePolicy.constant.interval: must be a duration",
		`{"failurePolicy":{"constant":{"maxRetries":-1}}}`: "failurePolicy.constant.maxRetries: must be a whole " +
			"number, 0 or more",
		`{"failurePolicy":{"constant":3}}`:            "failurePolicy.constant: write {",
		`{"failurePolicy":{"constant":{},"drop":{}}}`: "failurePolicy: write {",
		`{"failurePolicy":"drop"}`:                    "failurePolicy: write {",
		`{"dueTime":7}`:                               "dueTime: must be a string",
		`{"repeats":"often"}`:                         "repeats: must be a whole number",
		`{"dueTime":"1s","due_time":"2s"}`:            "a field is given twice",
	} {
		job, _, err := jobproto.Parse("j", []byte(body))
		if err == nil || !strings.HasPrefix(api.AsError(err).Message, want) {
			t.Errorf("%s: %v, %v, want %q", body, job, err, want)
		}
	}
}
