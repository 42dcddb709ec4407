// Package jobproto converts jobs between Dapr's protobuf messages and the types of package api. It owns the format in
// which jobs are stored: the encoded message Job that the caller has sent. It has no state and no goroutines.
package jobproto

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// defaultInterval is the pause between attempts if a constant failure policy has no interval. Without a pause, a job
// that always fails would keep a processor busy.
const defaultInterval = time.Second

// lenient ignores unknown fields, as Dapr does.
var lenient = protojson.UnmarshalOptions{DiscardUnknown: true}

const policyForm = `write {"constant": {"interval": "1s", "maxRetries": 3}} or {"drop": {}}`

// ToJob converts a protobuf message to a job. The field Record of the job has the encoded message.
func ToJob(in *runtimev1.Job) (api.Job, error) {
	record, err := proto.Marshal(in)
	if err != nil {
		return api.Job{}, fault.Wrap(err, "jobproto.ToJob", "the job cannot be encoded")
	}
	return api.Job{Name: in.GetName(), Schedule: in.GetSchedule(), DueTime: in.GetDueTime(), TTL: in.GetTtl(),
		Repeats: in.Repeats, Policy: PolicyOf(in.GetFailurePolicy()), DataSize: len(in.GetData().GetValue()),
		Record: record}, nil
}

// PolicyOf converts a failure policy. It returns nil if the message has no policy.
func PolicyOf(in *commonv1.JobFailurePolicy) *api.JobPolicy {
	switch p := in.GetPolicy().(type) {
	case *commonv1.JobFailurePolicy_Drop:
		return &api.JobPolicy{}
	case *commonv1.JobFailurePolicy_Constant:
		interval := defaultInterval
		if p.Constant.GetInterval() != nil {
			interval = p.Constant.GetInterval().AsDuration()
		}
		return &api.JobPolicy{Retry: true, Interval: interval, MaxRetries: p.Constant.MaxRetries}
	}
	return nil
}

// ParsePolicy parses a failure policy in the JSON form of protobuf. In addition, it accepts any Go duration as the
// interval, because the Python SDK sends durations such as 0h0m5s0ms. If text is empty or null, ParsePolicy returns
// nil.
func ParsePolicy(text json.RawMessage) (*api.JobPolicy, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var p commonv1.JobFailurePolicy
	if err := lenient.Unmarshal(inSeconds(text), &p); err != nil {
		return nil, fault.New(fault.Invalid, "jobproto.ParsePolicy", "the failure policy cannot be read: "+
			policyForm)
	}
	return PolicyOf(&p), nil
}

// inSeconds converts the interval of a failure policy in JSON to seconds, the only unit that the JSON form of protobuf
// permits. It returns invalid text unchanged.
func inSeconds(text json.RawMessage) json.RawMessage {
	var policy, constant map[string]json.RawMessage
	var interval string
	if json.Unmarshal(text, &policy) != nil || json.Unmarshal(policy["constant"], &constant) != nil ||
		json.Unmarshal(constant["interval"], &interval) != nil {
		return text
	}
	d, err := time.ParseDuration(interval)
	if err != nil {
		return text
	}
	if constant["interval"], err = protojson.Marshal(durationpb.New(d)); err != nil {
		return text
	}
	if policy["constant"], err = json.Marshal(constant); err != nil {
		return text
	}
	out, err := json.Marshal(policy)
	if err != nil {
		return text
	}
	return out
}

// Decode decodes the Record of a stored job.
func Decode(record []byte) (*runtimev1.Job, error) {
	out := &runtimev1.Job{}
	if err := proto.Unmarshal(record, out); err != nil {
		return nil, &fault.Error{Code: fault.Corrupt, Op: "jobproto.Decode", Err: err,
			Msg: "a stored job cannot be decoded"}
	}
	return out, nil
}

// Parse parses the body of an HTTP request that schedules a job. All errors are *api.Error. The body has the fields of
// the message Job and the field overwrite, with these rules:
//
//   - Unknown fields are ignored.
//   - As in Dapr, the field data may be any JSON value, even null. It has at most api.MaxJobData bytes.
//   - All other fields count as absent if they are null.
//   - The interval of a failure policy may be any Go duration.
func Parse(name string, body []byte) (job *runtimev1.Job, overwrite bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, false, malformed("the body is no JSON object")
	}
	for field, value := range fields {
		if string(value) == "null" && field != "data" {
			delete(fields, field)
		}
	}
	if _, found := fields["name"]; found {
		return nil, false, &api.Error{Kind: api.Malformed, Code: api.CodeJobName, Details: api.Details{
			Reason: api.CodeJobName}, Message: "the name of the job is in the path, and must not be in the body"}
	}
	data := fields["data"]
	switch string(fields["overwrite"]) {
	case "true", `"true"`:
		overwrite = true
	case "", "false", `"false"`:
	default:
		return nil, false, malformed("overwrite: must be true or false")
	}
	delete(fields, "data")
	delete(fields, "overwrite")
	for _, policy := range [...]string{"failurePolicy", "failure_policy"} {
		if text, found := fields[policy]; found {
			fields[policy] = inSeconds(text)
		}
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return nil, false, malformed("the body is no JSON object")
	}
	job = &runtimev1.Job{}
	if err := lenient.Unmarshal(rest, job); err != nil {
		return nil, false, malformed(problem("", fields, job.ProtoReflect()))
	}
	job.Name = name
	if len(data) > api.MaxJobData { // before decoding: two bytes of data can need more than 100 bytes of memory
		return nil, false, malformed("data: has " + strconv.Itoa(len(data)) + " bytes, the limit is " +
			strconv.Itoa(api.MaxJobData))
	}
	if data != nil {
		var value structpb.Value
		if err := protojson.Unmarshal(data, &value); err != nil {
			return nil, false, malformed("data: is no JSON value")
		}
		if job.Data, err = anypb.New(&value); err != nil {
			return nil, false, malformed("data: " + err.Error())
		}
	}
	return job, overwrite, nil
}

// problem explains why a JSON object cannot be decoded into the message m. The text names the wrong field by its path.
// at is the path of m and ends with a dot. If m is the job itself, at is empty.
func problem(at string, fields map[string]json.RawMessage, m protoreflect.Message) string {
	known := m.Descriptor().Fields()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		path := at + api.Shorten(name)
		field := known.ByJSONName(name)
		if field == nil {
			field = known.ByTextName(name)
		}
		if field == nil {
			continue
		}
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err == nil && lenient.Unmarshal(one, m.New().Interface()) == nil {
			continue
		}
		var inner map[string]json.RawMessage
		if field.Message() != nil && json.Unmarshal(fields[name], &inner) == nil {
			return problem(path+".", inner, m.NewField(field).Message())
		}
		return path + ": " + wanted(field)
	}
	if at != "" {
		return strings.TrimSuffix(at, ".") + ": " + policyForm
	}
	return "a field is given twice: its names with and without _ mean the same"
}

// wanted describes the allowed values of a field.
func wanted(field protoreflect.FieldDescriptor) string {
	switch {
	case field.JSONName() == "interval":
		return "must be a duration such as 5s"
	case field.Kind() == protoreflect.StringKind:
		return "must be a string"
	case field.Kind() == protoreflect.Uint32Kind:
		return "must be a whole number, 0 or more"
	}
	return policyForm
}

func malformed(text string) error {
	return &api.Error{Kind: api.Malformed, Code: api.CodeJobSchedule, Message: text,
		Details: api.Details{Reason: api.CodeJobSchedule}}
}

// JSON returns a job as JSON for an HTTP answer. If this program does not know the protobuf type of the job's data,
// JSON encodes the bytes of the data in base64.
func JSON(job *runtimev1.Job) (json.RawMessage, error) {
	text, err := protojson.Marshal(job)
	if err == nil {
		return compact(text)
	}
	bare, _ := proto.Clone(job).(*runtimev1.Job)
	bare.Data = nil
	if text, err = protojson.Marshal(bare); err != nil {
		return nil, fault.Wrap(err, "jobproto.JSON", "a job cannot be encoded")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fault.Wrap(err, "jobproto.JSON", "a job cannot be encoded")
	}
	if fields["data"], err = json.Marshal(struct {
		Type  string `json:"@type"`
		Value []byte `json:"value"`
	}{job.GetData().GetTypeUrl(), job.GetData().GetValue()}); err != nil {
		return nil, fault.Wrap(err, "jobproto.JSON", "a job cannot be encoded")
	}
	return json.Marshal(fields)
}

// compact removes the spaces that protojson adds at random.
func compact(text []byte) (json.RawMessage, error) { return json.Marshal(json.RawMessage(text)) }

// Body returns the body of the HTTP call that delivers data to an application. If data is a JSON value, the body is
// the JSON text of that value. A StringValue or BytesValue is delivered as its text or bytes. For other types, the
// body has the bytes of data.
func Body(data *anypb.Any) []byte {
	var value structpb.Value
	var text wrapperspb.StringValue
	var raw wrapperspb.BytesValue
	switch {
	case data.MessageIs(&text) && data.UnmarshalTo(&text) == nil:
		return []byte(text.GetValue())
	case data.MessageIs(&raw) && data.UnmarshalTo(&raw) == nil:
		return raw.GetValue()
	case data.MessageIs(&value) && data.UnmarshalTo(&value) == nil && value.GetKind() != nil:
		if text, err := protojson.Marshal(&value); err == nil {
			if text, err := compact(text); err == nil {
				return text
			}
		}
	}
	return data.GetValue()
}
