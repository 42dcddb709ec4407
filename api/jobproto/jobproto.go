// Package jobproto converts jobs between Dapr's protobuf messages and the types of package api. It owns the stored
// form of a job, which is the message Job of the caller. It has no state and no goroutines.
package jobproto

import (
	"encoding/json"
	"strconv"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// ToJob converts a protobuf message to a job. Record of the job is the encoded message.
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
		return &api.JobPolicy{Retry: true, Interval: p.Constant.GetInterval().AsDuration(),
			MaxRetries: p.Constant.MaxRetries}
	}
	return nil
}

// ParsePolicy parses a failure policy in the JSON form of protobuf. The interval may be any Go duration, because the
// Python SDK sends 0h0m5s0ms. For an empty text or null, ParsePolicy returns nil.
func ParsePolicy(text json.RawMessage) (*api.JobPolicy, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var p commonv1.JobFailurePolicy
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(inSeconds(text), &p); err != nil {
		return nil, fault.New(fault.Invalid, "jobproto.ParsePolicy", "the failure policy cannot be read: "+
			"write {\"constant\": {\"interval\": \"1s\", \"maxRetries\": 3}} or {\"drop\": {}}")
	}
	return PolicyOf(&p), nil
}

// inSeconds returns the JSON of a failure policy with its interval in seconds, the only unit in the JSON form of
// protobuf. It returns invalid text unchanged.
func inSeconds(text json.RawMessage) json.RawMessage {
	var policy map[string]map[string]any
	if err := json.Unmarshal(text, &policy); err != nil {
		return text
	}
	interval, _ := policy["constant"]["interval"].(string)
	d, err := time.ParseDuration(interval)
	if err != nil {
		return text
	}
	policy["constant"]["interval"] = strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
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

// Parse parses the body of an HTTP request that schedules a job. The body has the fields of the message Job, and the
// field overwrite. The field data may be any JSON of at most api.MaxJobData bytes, also null, as in Dapr. Other null
// fields count as absent. Unknown fields are ignored. All errors are *api.Error.
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
	rest, err := json.Marshal(fields)
	if err != nil {
		return nil, false, malformed("the body is no JSON object")
	}
	job = &runtimev1.Job{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(rest, job); err != nil {
		return nil, false, malformed("a field has the wrong type: " + err.Error())
	}
	job.Name = name
	if len(data) > api.MaxJobData { // before it is decoded: two bytes of it can need more than a hundred
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

func malformed(text string) error {
	return &api.Error{Kind: api.Malformed, Code: api.CodeJobSchedule, Message: text,
		Details: api.Details{Reason: api.CodeJobSchedule}}
}

// JSON returns a job in the form of HTTP answers. If this program does not know the type of the data, the field data
// has the bytes in base64.
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
// the JSON text of that value. A StringValue or BytesValue is delivered as its text or bytes. For other types, the body
// has the bytes of data.
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
