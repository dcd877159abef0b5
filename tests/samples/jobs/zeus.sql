BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'nightly');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'zeus','"{\"format\": \"zeus-core job\", \"version\": 1, \"batch_sizes\": [16, 32, 64, 128], \"default\": 64, \"target\": {\"metric\": \"eval_accuracy\", \"value\": 0.84, \"is_higher_better\": true}, \"max_epochs\": 20, \"objective\": \"ZeusCost(eta_knob=0.5, world_size=1, max_power_watts=400)\", \"learning_rate_rule\": \"square root\", \"policy\": \"Untried\"}"');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_heartbeats" VALUES(1,1,'2026-11-25 20:59:21');
INSERT INTO "trial_heartbeats" VALUES(2,2,'2026-11-25 20:59:21');
INSERT INTO "trial_heartbeats" VALUES(3,3,'2026-11-25 20:59:22');
INSERT INTO "trial_heartbeats" VALUES(4,4,'2026-11-25 20:59:22');
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_intermediate_values" VALUES(1,1,1,0.105,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(2,1,8,0.84,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(3,2,1,2.79999999999999971134e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(4,2,3,0.84,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(5,3,1,0.21,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(6,3,4,0.84,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(7,4,1,2.79999999999999971134e-02,'FINITE');
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'batch_size',64.0,'{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 1099511627776}}');
INSERT INTO "trial_params" VALUES(2,2,'batch_size',16.0,'{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 1099511627776}}');
INSERT INTO "trial_params" VALUES(3,3,'batch_size',32.0,'{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 1099511627776}}');
INSERT INTO "trial_params" VALUES(4,4,'batch_size',128.0,'{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 1099511627776}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'zeus','"{\"format\": \"zeus-core run\", \"version\": 1, \"uid\": \"cadec8029ff6468fae9e475c1dc2d383\", \"batch_size\": 64, \"outcome\": \"reached\", \"reason\": \"eval_accuracy is 0.84\", \"started_at\": 1795640361.3350334, \"max_cost\": null, \"gpu_model\": \"A40\", \"ranks\": 1, \"evaluations\": [{\"epoch\": 1.0, \"metric\": 0.105, \"seconds\": 1.5, \"energy_joules\": 450.0, \"cost\": 525.0}, {\"epoch\": 2.0, \"metric\": 0.21, \"seconds\": 3.0, \"energy_joules\": 900.0, \"cost\": 1050.0}, {\"epoch\": 3.0, \"metric\": 0.315, \"seconds\": 4.5, \"energy_joules\": 1350.0, \"cost\": 1575.0}, {\"epoch\": 4.0, \"metric\": 0.42, \"seconds\": 6.0, \"energy_joules\": 1800.0, \"cost\": 2100.0}, {\"epoch\": 5.0, \"metric\": 0.525, \"seconds\": 7.5, \"energy_joules\": 2250.0, \"cost\": 2625.0}, {\"epoch\": 6.0, \"metric\": 0.63, \"seconds\": 9.0, \"energy_joules\": 2700.0, \"cost\": 3150.0}, {\"epoch\": 7.0, \"metric\": 0.735, \"seconds\": 10.5, \"energy_joules\": 3150.0, \"cost\": 3675.0}, {\"epoch\": 8.0, \"metric\": 0.84, \"seconds\": 12.0, \"energy_joules\": 3600.0, \"cost\": 4200.0}], \"replaces\": null}"');
INSERT INTO "trial_user_attributes" VALUES(2,2,'zeus','"{\"format\": \"zeus-core run\", \"version\": 1, \"uid\": \"251f826628944e72b1a10ba994f03af2\", \"batch_size\": 16, \"outcome\": \"reached\", \"reason\": \"eval_accuracy is 0.84\", \"started_at\": 1795640361.836819, \"max_cost\": null, \"gpu_model\": \"A40\", \"ranks\": 1, \"evaluations\": [{\"epoch\": 1.0, \"metric\": 0.27999999999999997, \"seconds\": 3.0, \"energy_joules\": 900.0, \"cost\": 1050.0}, {\"epoch\": 2.0, \"metric\": 0.5599999999999999, \"seconds\": 6.0, \"energy_joules\": 1800.0, \"cost\": 2100.0}, {\"epoch\": 3.0, \"metric\": 0.84, \"seconds\": 9.0, \"energy_joules\": 2700.0, \"cost\": 3150.0}], \"replaces\": null}"');
INSERT INTO "trial_user_attributes" VALUES(3,3,'zeus','"{\"format\": \"zeus-core run\", \"version\": 1, \"uid\": \"0344f179b532413e8ed06145fec964e8\", \"batch_size\": 32, \"outcome\": \"reached\", \"reason\": \"eval_accuracy is 0.84\", \"started_at\": 1795640362.240667, \"max_cost\": null, \"gpu_model\": \"A40\", \"ranks\": 1, \"evaluations\": [{\"epoch\": 1.0, \"metric\": 0.21, \"seconds\": 1.6666666666666667, \"energy_joules\": 500.0, \"cost\": 583.3333333333334}, {\"epoch\": 2.0, \"metric\": 0.42, \"seconds\": 3.3333333333333335, \"energy_joules\": 1000.0, \"cost\": 1166.6666666666667}, {\"epoch\": 3.0, \"metric\": 0.63, \"seconds\": 5.0, \"energy_joules\": 1500.0, \"cost\": 1750.0}, {\"epoch\": 4.0, \"metric\": 0.84, \"seconds\": 6.666666666666667, \"energy_joules\": 2000.0, \"cost\": 2333.3333333333335}], \"replaces\": null}"');
INSERT INTO "trial_user_attributes" VALUES(4,4,'zeus','"{\"format\": \"zeus-core run\", \"version\": 1, \"uid\": \"4964fe36c06d4c7ca98f4d8517bf78a9\", \"batch_size\": 128, \"outcome\": \"running\", \"reason\": \"it was not tried\", \"started_at\": 1795640362.7288256, \"max_cost\": null, \"gpu_model\": \"A40\", \"ranks\": 1, \"evaluations\": [{\"epoch\": 1.0, \"metric\": 0.027999999999999997, \"seconds\": 1.3333333333333333, \"energy_joules\": 400.0, \"cost\": 466.66666666666663}], \"replaces\": null}"');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,4200.0,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,3150.0,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,2.33333333333333348483e+03,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-25 20:59:21.239036','2026-11-25 20:59:21.559521');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-25 20:59:21.731774','2026-11-25 20:59:22.035690');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-25 20:59:22.112616','2026-11-25 20:59:22.458571');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-25 20:59:22.621255',NULL);
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;