// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

var sample = api.Notification{
	ID: "0123", Sequence: 7, Kind: api.RolloutNeedsYou, Time: metav1.NewTime(morning), Webhooks: []string{"chat"},
	RolloutNews: api.RolloutNews{
		Cluster: "prod", Policy: "careful", Pool: "worker", From: "A", To: "B", Machines: 3, Updated: 1, Failed: 1,
		Nodes: []string{"a"}, Reason: "Quarantined", Because: "it failed", Do: "lift it", Object: "MachineConfig B",
		Text: "pool worker needs you",
	},
}

func TestAWebhookGetsACloudEventThatTheLibraryReads(t *testing.T) {
	t.Parallel()
	var got *event.Event
	var header http.Header
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		message := cehttp.NewMessageFromHttpRequest(r)
		if message.ReadEncoding() != binding.EncodingStructured {
			t.Errorf("the encoding is %s", message.ReadEncoding())
		}
		var err error
		if got, err = binding.ToEvent(r.Context(), message); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	to := Access{URL: server.URL + "/hook?x=1", Token: "secret", CA: ca, Agent: "machine-config-controller/1"}
	if err := Deliver(t.Context(), to, sample); err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if got.ID() != "0123" || got.Type() != "dev.noderefit.rollout.needsyou" ||
		got.Source() != "prod/machineconfigpools/worker" || got.Subject() != "B" || !got.Time().Equal(morning) ||
		got.Extensions()["sequence"] != "00000000000000000007" {
		t.Errorf("the event is %s", got)
	}
	var news api.RolloutNews
	if err := json.Unmarshal(got.Data(), &news); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample.RolloutNews, news); diff != "" {
		t.Errorf("the data (-want +got):\n%s", diff)
	}
	if header.Get("Authorization") != "Bearer secret" || header.Get("User-Agent") != "machine-config-controller/1" {
		t.Errorf("the header is %v", header)
	}
	// Without the certificates that it is known by, it is not talked to.
	to.CA = nil
	if err := Deliver(t.Context(), to, sample); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("talked to a stranger: %v", err)
	}
}

func TestWhatAnAnswerSaysDecidesWhetherItIsTriedAgain(t *testing.T) {
	t.Parallel()
	for status, never := range map[int]bool{
		400: true, 401: false, 403: false, 404: false, 410: true, 415: true, 429: false, 500: false, 503: false, 302: false,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.Header().Set("Location", "/elsewhere")
				http.Error(w, "because\nof this", status)
			}))
			defer server.Close()
			err := Deliver(t.Context(), Access{URL: server.URL}, sample)
			if err == nil || !strings.Contains(err.Error(), `because\nof this`) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("it says: %v", err)
			}
			if _, refused := errors.AsType[*RefusedError](err); refused != never || asked != 1 {
				t.Errorf("refused for ever: %t, asked %d times", refused, asked)
			}
		})
	}
}

func TestAnErrorDoesNotTellTheRestOfTheURL(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "Cannot POST "+r.URL.RequestURI()+", that is "+r.URL.Path, http.StatusNotFound)
	}))
	defer server.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	const secret = "/hook/T0K3N?key=T0K3N"
	for base, names := range map[string]string{
		server.URL: server.URL, gone.URL: gone.URL, "https://user:T0K3N@[::1]:1": "https://[::1]:1", "http://a b%zz": "",
		"gopher://example": "gopher://example",
	} {
		err := Deliver(t.Context(), Access{URL: base + secret, Agent: "x"}, sample)
		if err == nil || strings.Contains(err.Error(), "T0K3N") || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", base, err)
		}
	}
}
