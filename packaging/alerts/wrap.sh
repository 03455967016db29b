#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the rules an object of Prometheus' operator.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
{
	cat <<-'END'
		# Made from packaging/alerts/noderefit.rules.yaml by make generate.
		apiVersion: monitoring.coreos.com/v1
		kind: PrometheusRule
		metadata:
		  name: noderefit
		  namespace: openshift-machine-config-operator
		  labels:
		    app.kubernetes.io/part-of: noderefit
		spec:
	END
	sed -n '/^groups:/,$p' noderefit.rules.yaml | sed 's/^\(.\)/  \1/'
} >../kustomize/monitoring/prometheusrule.yaml
