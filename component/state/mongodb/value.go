package mongodb

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// decode returns the bytes of a stored value. It returns a string unchanged. Dapr may have stored JSON as another BSON
// type, which decode converts back to JSON.
func decode(v bson.RawValue) ([]byte, error) {
	if text, ok := v.StringValueOK(); ok {
		return []byte(text), nil
	}
	var out bytes.Buffer
	err := encode(&out, v, maxNesting)
	return out.Bytes(), err
}

// maxNesting is the maximum number of levels of nested documents in a value. It is the same limit as in MongoDB.
const maxNesting = 100

// encode writes a BSON value as JSON. Members of documents keep their order. It returns an error if the value has more
// than depth levels of nesting.
func encode(out *bytes.Buffer, v bson.RawValue, depth int) error {
	if depth == 0 {
		return errors.New("it is nested too deeply")
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return encodeMembers(out, v.Document(), '{', '}', depth)
	case bson.TypeArray:
		return encodeMembers(out, bson.Raw(v.Array()), '[', ']', depth)
	case bson.TypeDouble:
		return encodeDouble(out, v.Double())
	case bson.TypeNull, bson.TypeUndefined, 0:
		out.WriteString("null")
	case bson.TypeBoolean:
		out.WriteString(strconv.FormatBool(v.Boolean()))
	case bson.TypeInt32, bson.TypeInt64:
		out.WriteString(strconv.FormatInt(v.AsInt64(), 10))
	case bson.TypeString:
		return encodeText(out, v.StringValue())
	case bson.TypeDateTime:
		return encodeText(out, v.Time().UTC().Format(time.RFC3339Nano))
	case bson.TypeObjectID:
		return encodeText(out, v.ObjectID().Hex())
	default:
		return errors.New("the BSON type is " + v.Type.String())
	}
	return nil
}

func encodeMembers(out *bytes.Buffer, d bson.Raw, first, last byte, depth int) error {
	members, err := d.Elements()
	if err != nil {
		return err
	}
	out.WriteByte(first)
	for i, member := range members {
		if i > 0 {
			out.WriteByte(',')
		}
		if first == '{' {
			if err := encodeText(out, member.Key()); err != nil {
				return err
			}
			out.WriteByte(':')
		}
		if err := encode(out, member.Value(), depth-1); err != nil {
			return err
		}
	}
	out.WriteByte(last)
	return nil
}

func encodeDouble(out *bytes.Buffer, n float64) error {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return errors.New("the number is not finite")
	}
	text, err := json.Marshal(n)
	out.Write(text)
	return err
}

func encodeText(out *bytes.Buffer, text string) error {
	quoted, err := json.Marshal(text)
	out.Write(quoted)
	return err
}
